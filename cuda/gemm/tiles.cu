// How a product is divided among blocks: the part of all templates.
//
// A kernel consists of its constants, this text, that of its template, others that it shares, and
// sum.cu. Constants are:
//   Element            type of the matrices' elements
//   M, N, K            sizes of the product
//   A_TRANSPOSED       whether A is stored as K rows of M elements, rather than M rows of K
//   B_TRANSPOSED       whether B is stored as N rows of K elements, rather than K rows of N
//   LDC                distance in elements between the rows of C
//   TILE_M, TILE_N     size of the part of C that a block computes at a time
//   CLUSTER_M, CLUSTER_N   blocks of a cluster, which compute neighbouring parts at the same time; what
//                          follows calls all their parts a tile
//   TILE_K             columns of A and rows of B that it holds in shared memory for one step
//   STAGES             steps that are in shared memory or on the way there
//   BLOCKS             number of blocks, or of clusters, among which the work is divided
//   WHOLE_TILES        tiles, of all the first ones, that blocks compute in turn, each a whole one; all
//                      steps of the others are divided evenly
//   GROUP              rows of tiles that are computed together, so that they share B in the L2
//   SHARED_TILES       whether some tiles are shared by several blocks
//   THREADS            of a block
//
// With as many blocks as tiles, each block computes a tile. With any other number, a tile can be
// shared by several blocks (split-K, stream-K): each of these writes its part of the sum to a
// workspace, and gemm_sum adds the parts, always in the same order.

constexpr int CLUSTER = CLUSTER_M * CLUSTER_N;
constexpr int ALL_TILE_M = CLUSTER_M * TILE_M, ALL_TILE_N = CLUSTER_N * TILE_N;
constexpr int ROWS = (M + ALL_TILE_M - 1) / ALL_TILE_M, COLUMNS = (N + ALL_TILE_N - 1) / ALL_TILE_N;
constexpr int STEPS = (K + TILE_K - 1) / TILE_K;
constexpr bool ALL_M = M % ALL_TILE_M == 0, ALL_N = N % ALL_TILE_N == 0;
constexpr long long DIVIDED_STEPS = (static_cast<long long>(ROWS) * COLUMNS - WHOLE_TILES) * STEPS;

// Steps are counted from the first tile on whose steps are divided.
__device__ int first_step(int block) {
  return static_cast<int>(DIVIDED_STEPS * block / BLOCKS);
}

struct Place {
  int row, column;
};

// Of the first element in C of a tile, or of the part that a block of this rank in its cluster computes.
__device__ Place place_of(int tile, int rank = 0) {
  int group = tile / (GROUP * COLUMNS), within = tile % (GROUP * COLUMNS);
  int rows = min(GROUP, ROWS - group * GROUP);
  return {(group * GROUP + within % rows) * ALL_TILE_M + rank % CLUSTER_M * TILE_M,
          within / rows * ALL_TILE_N + rank / CLUSTER_M * TILE_N};
}

// Where a block's part of a tile's sum is in the workspace: of a tile that it begins, or that it ends.
__device__ long long part_of(int block, int rank, bool begins) {
  return ((2LL * block + begins) * CLUSTER + rank) * (TILE_M * TILE_N);
}

// What is copied at once: so many bytes.
template <int BYTES>
struct Piece;
template <>
struct Piece<16> {
  using Type = uint4;
};
template <>
struct Piece<8> {
  using Type = uint2;
};
template <>
struct Piece<4> {
  using Type = unsigned;
};
template <>
struct Piece<2> {
  using Type = unsigned short;
};

// Write two neighbouring elements of rows of `distance` elements, of which `columns` exist from there
// on, or ALL.
template <bool ALL, class T>
__device__ __forceinline__ void store_pair(T* there, int distance, int columns, float first,
                                           float second) {
  using Both = typename Piece<2 * sizeof(T)>::Type;
  alignas(sizeof(Both)) T pair[2] = {T(first), T(second)};
  if (distance % 2 == 0 && (ALL || columns >= 2)) {
    *reinterpret_cast<Both*>(there) = *reinterpret_cast<const Both*>(pair);
  } else {
    if (columns > 0) there[0] = pair[0];
    if (columns > 1) there[1] = pair[1];
  }
}
