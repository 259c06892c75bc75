// How a product is divided among blocks: the part of all templates.
//
// A kernel consists of its constants, this text, that of its template, others that it shares, and
// sum.cu. Constants are:
//   Element            type of the matrices' elements
//   M, N, K            sizes of the product
//   PRODUCTS           number of matrices B: of a batch, whose matrices A and C are as many, or of groups
//   GROUPED            whether they are of groups: parts of the M rows of A and C, each with its own B.
//                      Then there are also:
//   FIRST_ROWS         the first row of each group, and M
//   FIRST_TILES        the first row of tiles of each group, and TILE_ROWS, the number of all
//   ALL_M              whether all tiles have only rows of their own product
//   A_TRANSPOSED       whether A is stored as K rows of M elements, rather than M rows of K
//   B_TRANSPOSED       whether B is stored as N rows of K elements, rather than K rows of N
//   LDC                distance in elements between the rows of C
//   SWAPPED            whether the transpose of C is computed, B^T A^T: M, N, A, B, rows and columns are then those
//                      of that product, but for C itself
//   TILE_M, TILE_N     size of the part of C that a block computes at a time
//   CLUSTER_M, CLUSTER_N   blocks of a cluster, which compute neighbouring parts at the same time; what
//                          follows calls all their parts a tile
//   TILE_BLOCKS        blocks of a cluster that divide the steps of each tile, which then all compute the same
//                      one; or 1
//   CLUSTERED          whether clusters have several blocks
//   TILE_K             columns of A and rows of B that it holds in shared memory for one step
//   STAGES             steps that are in shared memory or on the way there
//   BLOCKS             number of blocks, or of clusters, among which the work is divided
//   WHOLE_TILES        tiles, of all the first ones, that blocks compute in turn, each a whole one; all
//                      steps of the others are divided evenly
//   GROUP              rows of tiles that are computed together, so that they share B in the L2
//   SHARED_TILES       whether some tiles are shared by several blocks
//   THREADS            of a block
//   EARLY              whether blocks may begin while the launch before them ends
//
// With as many blocks as tiles, each block computes a tile. With any other number, a tile can be
// shared by several blocks (split-K, stream-K): each of these writes its part of the sum to a
// workspace, and gemm_sum adds the parts, always in the same order.

// Wait for the end of the launch before this one: nothing is read or written in memory before that.
__device__ __forceinline__ void follow() {
#if EARLY
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Let blocks of the next launch begin where there is room, once all blocks of this one have come here.
__device__ __forceinline__ void let_next_begin() {
#if EARLY
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// The block of a cluster, of those that divide the steps of a tile.
__device__ __forceinline__ int own_part() { return blockIdx.x % TILE_BLOCKS; }

constexpr int CLUSTER = CLUSTER_M * CLUSTER_N;
constexpr int ALL_TILE_M = CLUSTER_M * TILE_M, ALL_TILE_N = CLUSTER_N * TILE_N;
constexpr int COLUMNS = (N + ALL_TILE_N - 1) / ALL_TILE_N;
constexpr int STEPS = (K + TILE_K - 1) / TILE_K;
constexpr bool ALL_N = N % ALL_TILE_N == 0;
#if GROUPED
__constant__ int GROUP_ROWS[PRODUCTS + 1] = {FIRST_ROWS}, GROUP_TILES[PRODUCTS + 1] = {FIRST_TILES};
#else
constexpr int ROWS = (M + ALL_TILE_M - 1) / ALL_TILE_M;  // of tiles, in each product
constexpr int TILE_ROWS = PRODUCTS * ROWS;
#endif
constexpr long long DIVIDED_STEPS = (static_cast<long long>(TILE_ROWS) * COLUMNS - WHOLE_TILES) * STEPS;

// Steps are counted from the first tile on whose steps are divided.
__device__ int first_step(int block) {
  return static_cast<int>(DIVIDED_STEPS * block / BLOCKS);
}

// A row and a column in the C of a product, or in the only C of groups; `end` is beyond the last row that
// has the same B, of number `product`.
struct Place {
  int row, column, product, end;
};

// Of the first element of a tile, or of the part that a block of this rank in its cluster computes.
__device__ Place place_of(int tile, int rank = 0) {
#if GROUPED
  int product = 0;
  for (int last = PRODUCTS - 1; product < last;) {
    int middle = (product + last + 1) / 2;
    bool before = tile < GROUP_TILES[middle] * COLUMNS;
    (before ? last : product) = before ? middle - 1 : middle;
  }
  int first = GROUP_ROWS[product], end = GROUP_ROWS[product + 1];
  int all_rows = GROUP_TILES[product + 1] - GROUP_TILES[product];
  tile -= GROUP_TILES[product] * COLUMNS;
#else
  int product = PRODUCTS == 1 ? 0 : tile / (ROWS * COLUMNS);
  constexpr int first = 0, end = M, all_rows = ROWS;
  if (PRODUCTS > 1) tile %= ROWS * COLUMNS;
#endif
  int group = tile / (GROUP * COLUMNS), within = tile % (GROUP * COLUMNS);
  int rows = min(GROUP, all_rows - group * GROUP);
  return {first + (group * GROUP + within % rows) * ALL_TILE_M + rank % CLUSTER_M * TILE_M,
          within / rows * ALL_TILE_N + rank / CLUSTER_M * TILE_N, product, end};
}

// The number of the product's A and C.
__device__ __forceinline__ int matrix_of(const Place& place) { return GROUPED ? 0 : place.product; }

[[maybe_unused]] constexpr int C_ROWS = SWAPPED ? N : M, C_COLUMNS = SWAPPED ? M : N;

// The place in C of one in what is computed.
__device__ __forceinline__ Place place_of_c(const Place& place) {
  return SWAPPED ? Place{place.column, place.row, place.product, N} : place;
}

// Where in all of C, or of the residual, a place in C is.
__device__ __forceinline__ int place_in_c(const Place& place) {
  return (matrix_of(place) * C_ROWS + place.row) * LDC + place.column;
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
