// How a product is divided among blocks, and copied to shared memory: the part of all templates.
//
// A kernel consists of its constants, this text, that of its template, and kernel.cu. Constants are:
//   Element            type of the matrices' elements
//   M, N, K            sizes of the product
//   LDA, LDB           distances in elements between the stored rows of A and B
//   A_TRANSPOSED       whether A is stored as K rows of M elements, rather than M rows of K
//   TILE_M, TILE_N     size of the part of C that a block computes at a time
//   TILE_K             columns of A and rows of B that it holds in shared memory for one step
//   STAGES             steps that are in shared memory or on the way there
//   BLOCKS             number of blocks, among which all steps of all tiles are divided evenly
//   GROUP              rows of tiles that are computed together, so that they share B in the L2
//   SHARED_TILES       whether some tiles are shared by several blocks
//   THREADS            of a block
//   A_WIDTH, B_WIDTH   elements that can be copied at once, as the alignment of rows allows
//   ASYNCHRONOUS       whether steps are copied past the registers (cp.async, from sm_80 on)
//
// With as many blocks as tiles, each block computes a tile. With any other number, a tile can be
// shared by several blocks (split-K, stream-K): each of these writes its part of the sum to a
// workspace, and gemm_sum adds the parts, always in the same order.

constexpr int ROWS = (M + TILE_M - 1) / TILE_M, COLUMNS = (N + TILE_N - 1) / TILE_N;
constexpr int STEPS = (K + TILE_K - 1) / TILE_K;
constexpr bool ALL_M = M % TILE_M == 0, ALL_N = N % TILE_N == 0, ALL_K = K % TILE_K == 0;
constexpr long long ALL_STEPS = static_cast<long long>(ROWS) * COLUMNS * STEPS;

__device__ int first_step(int block) {
  return static_cast<int>(ALL_STEPS * block / BLOCKS);
}

__device__ int block_of(int step) {
  return static_cast<int>(((step + 1LL) * BLOCKS - 1) / ALL_STEPS);
}

struct Place {
  int row, column;  // of a tile's first element in C
};

__device__ Place place_of(int tile) {
  int group = tile / (GROUP * COLUMNS), within = tile % (GROUP * COLUMNS);
  int rows = min(GROUP, ROWS - group * GROUP);
  return {(group * GROUP + within % rows) * TILE_M, within / rows * TILE_N};
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

#if ASYNCHRONOUS
// Copy BYTES past the registers, of which the first `valid` exist; the others become 0.
template <int BYTES>
__device__ void copy_async(void* to, const void* from, int valid) {
  unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  if (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(address), "l"(from), "r"(valid) : "memory");
  } else if (BYTES == 8) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
                 :: "r"(address), "l"(from), "r"(valid) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                 :: "r"(address), "l"(from), "r"(valid) : "memory");
  }
}
#endif

// Copy WIDTH elements to shared memory, of which the first `valid` exist; the others become 0.
template <int WIDTH>
__device__ void copy(Element* to, const Element* from, int valid) {
  constexpr int BYTES = WIDTH * sizeof(Element);
#if ASYNCHRONOUS
  if (BYTES >= 4) {
    copy_async<BYTES>(to, from, valid * static_cast<int>(sizeof(Element)));
    return;
  }
#endif
  if (valid == WIDTH) {
    using Type = typename Piece<BYTES>::Type;
    *reinterpret_cast<Type*>(to) = *reinterpret_cast<const Type*>(from);
  } else {
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) to[i] = i < valid ? from[i] : Element(0.0f);
  }
}

// The pieces of a matrix of HEIGHT rows that a thread copies, in rows of PIECES: it stays in its
// column where that is possible, so that all addresses differ from the first by constants.
template <int HEIGHT, int PIECES, class Action>
__device__ void for_each_piece(const Action& act) {
  if (THREADS % PIECES == 0) {
    constexpr int DOWN = THREADS / PIECES > 0 ? THREADS / PIECES : 1;
    int first = threadIdx.x / PIECES, piece = threadIdx.x % PIECES;
#pragma unroll
    for (int row = 0; row < HEIGHT; row += DOWN) {
      if (HEIGHT % DOWN == 0 || first + row < HEIGHT) act(first + row, piece);
    }
  } else {
#pragma unroll
    for (int i = threadIdx.x; i < HEIGHT * PIECES; i += THREADS) act(i / PIECES, i % PIECES);
  }
}

// Copy HEIGHT rows of LENGTH elements, of which `rows` and `columns` are in the matrix: all of them
// where tiles divide it (ALL_ROWS, ALL_COLUMNS).
template <int HEIGHT, int LENGTH, int WIDTH, int TO_ROW, bool ALL_ROWS, bool ALL_COLUMNS>
__device__ void copy_rows(Element* to, const Element* from, int distance, int rows, int columns) {
  for_each_piece<HEIGHT, LENGTH / WIDTH>([=](int row, int piece) {
    int column = piece * WIDTH;
    int valid = ALL_COLUMNS ? WIDTH : min(max(columns - column, 0), WIDTH);
    if (!ALL_ROWS && row >= rows) valid = 0;
    bool any = (ALL_ROWS && ALL_COLUMNS) || valid;
    copy<WIDTH>(&to[row * TO_ROW + column], any ? from + row * distance + column : from, valid);
  });
}
