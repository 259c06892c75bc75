// C = A B on tensor cores (mma.sync, from sm_80 on), added in float32.
//
// Besides those of tiles.cu, the constants of this text are:
//   WARP_M, WARP_N     size of the part of a tile that a warp computes, multiples of 16
//   SLICES             groups of warps that divide the products of each step
//   HALVES             whether elements have 16 bits; BFLOAT16: which of the two types
//   SPLIT              whether elements of 32 bits are split (3xtf32)
//   ROUNDED            whether they are then rounded to TF32, rather than that their lower bits are cut off
//
// Where tiles are few, several slices give a multiprocessor the warps that it needs to be busy, and several
// blocks of a cluster divide the steps of a tile. All of them leave their sums in shared memory, where each
// block then adds those of a part of the rows.
//
// TF32 has 10 bits after the leading one, to which elements of 32 bits are rounded. Where they are
// split, each is the sum of two such numbers, and all products but that of the smaller parts are
// added: the result is as exact as one in float32 (Ootomo and Yokota, "Recovering single precision
// accuracy from Tensor Cores while surpassing the FP32 theoretical peak performance", 2022).

constexpr int DEPTH = HALVES ? 16 : 8;  // columns of A and rows of B in one instruction
constexpr int WARPS_M = TILE_M / WARP_M, WARPS_N = TILE_N / WARP_N;
constexpr int PIECES_M = WARP_M / 16, PIECES_N = WARP_N / 8;
constexpr int SLICE_WARPS = WARPS_M * WARPS_N, SLICE_K = TILE_K / SLICES;
static_assert(THREADS == 32 * SLICE_WARPS * SLICES, "warps must fill the tile");
static_assert(TILE_K == SLICE_K * SLICES && SLICE_K % DEPTH == 0, "slices must divide a step evenly");
// Eight rows of 16 bytes, or four rows of eight elements, are read at once: with this many elements
// more, they are in different banks.
constexpr bool A_BY_COLUMNS = A_TRANSPOSED, B_BY_ROWS = !B_TRANSPOSED;
constexpr int TURNED_ALONG = 8;  // nothing is turned
constexpr int A_ROW = A_BY_COLUMNS ? TILE_M + 8 : TILE_K + (HALVES ? 8 : 4);
constexpr int B_ROW = B_BY_ROWS ? TILE_N + 8 : TILE_K + (HALVES ? 8 : 4);
constexpr int A_STAGE = (A_BY_COLUMNS ? TILE_K : TILE_M) * A_ROW;
constexpr int LEAST_BLOCKS = 0;
constexpr bool SPREAD = false;

struct Sums {
  float of[PIECES_M][PIECES_N][4];
};

// Where this thread is in its warp, and the part of the tile that the warp computes.
struct Lane {
  int number = threadIdx.x % 32, row = number / 4, column = number % 4;
  int slice = threadIdx.x / 32 / SLICE_WARPS, warp = threadIdx.x / 32 % SLICE_WARPS;
  int m = warp % WARPS_M * WARP_M, n = warp / WARPS_M * WARP_N;
};

// The operands of one instruction, as registers of a thread.
struct OperandA {
  unsigned of[4];
};
struct OperandB {
  unsigned of[2];
};

// Read four matrices of 8 rows of 16 bytes. Each thread gives the address of a row, those of the
// first matrix first, and gets four bytes of each matrix.
__device__ void read_matrices(unsigned& a, unsigned& b, unsigned& c, unsigned& d,
                              const Element* row) {
  unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
               : "r"(address)
               : "memory");
}

// The same of matrices of 8 x 8 elements of 16 bits, each of which is transposed.
__device__ void read_transposed(unsigned& a, unsigned& b, unsigned& c, unsigned& d,
                                const Element* row) {
  unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
               : "r"(address)
               : "memory");
}

__device__ void read_a(OperandA& a, const Element* stage, const Lane& lane, int k, int piece) {
  int m = lane.m + 16 * piece;
#if !A_TRANSPOSED
  const Element* row = stage + (m + lane.number % 16) * A_ROW + k + lane.number / 16 * (DEPTH / 2);
  read_matrices(a.of[0], a.of[1], a.of[2], a.of[3], row);
#elif HALVES
  int down = lane.number % 8 + lane.number / 16 * 8, along = lane.number / 8 % 2 * 8;
  read_transposed(a.of[0], a.of[1], a.of[2], a.of[3], stage + (k + down) * A_ROW + m + along);
#else
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    int down = k + lane.column + i / 2 * 4, along = m + lane.row + i % 2 * 8;
    a.of[i] = __float_as_uint(stage[down * A_ROW + along]);
  }
#endif
}

// For two neighbouring pieces.
__device__ void read_b(OperandB& left, OperandB& right, const Element* stage, const Lane& lane,
                       int k, int piece) {
  int n = lane.n + 8 * piece;
#if B_TRANSPOSED
  int along = lane.number % 8 + lane.number / 16 * 8, down = lane.number / 8 % 2 * (DEPTH / 2);
  const Element* row = stage + (n + along) * B_ROW + k + down;
  read_matrices(left.of[0], left.of[1], right.of[0], right.of[1], row);
#elif HALVES
  const Element* row = stage + (k + lane.number % 16) * B_ROW + n + lane.number / 16 * 8;
  read_transposed(left.of[0], left.of[1], right.of[0], right.of[1], row);
#else
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const Element* row = stage + (k + lane.column + 4 * i) * B_ROW + n + lane.row;
    left.of[i] = __float_as_uint(row[0]);
    right.of[i] = __float_as_uint(row[8]);
  }
#endif
}

__device__ void multiply_add(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#if HALVES && BFLOAT16
  asm(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#elif HALVES
  asm(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  asm(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

#if !HALVES
__device__ unsigned rounded(float x) {
  unsigned bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
}

// Round an operand to TF32, and what is lost too. Without rounding, the bits that TF32 does not have may stay:
// instructions ignore them.
template <class Operand>
__device__ void split(Operand& x, Operand& rest) {
  constexpr int COUNT = sizeof(x.of) / sizeof(x.of[0]);
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    float whole = __uint_as_float(x.of[i]);
#if ROUNDED
    x.of[i] = rounded(whole);
    rest.of[i] = rounded(whole - __uint_as_float(x.of[i]));
#else
    rest.of[i] = __float_as_uint(whole - __uint_as_float(x.of[i] & 0xFFFFE000));
#endif
  }
}
#endif

// Add the products of one piece of A with all of B.
__device__ void multiply_add(float (&sums)[PIECES_N][4], const OperandA& a,
                             const OperandB (&b)[PIECES_N]) {
#pragma unroll
  for (int j = 0; j < PIECES_N; ++j) multiply_add(sums[j], a.of, b[j].of);
}

__device__ void multiply(Sums& sums, const Element* a_stage, const Element* b_stage) {
  Lane lane;
  a_stage += lane.slice * SLICE_K * (A_BY_COLUMNS ? A_ROW : 1);
  b_stage += lane.slice * SLICE_K * (B_BY_ROWS ? B_ROW : 1);
#pragma unroll
  for (int k = 0; k < SLICE_K; k += DEPTH) {
    OperandA a[PIECES_M];
    OperandB b[PIECES_N];
#pragma unroll
    for (int i = 0; i < PIECES_M; ++i) read_a(a[i], a_stage, lane, k, i);
#pragma unroll
    for (int j = 0; j < PIECES_N; j += 2) read_b(b[j], b[j + 1], b_stage, lane, k, j);
#if HALVES
#pragma unroll
    for (int i = 0; i < PIECES_M; ++i) multiply_add(sums.of[i], a[i], b);
#else
    OperandA a_rest;
    OperandB b_rest[PIECES_N];
#pragma unroll
    for (int j = 0; j < PIECES_N; ++j) split(b[j], b_rest[j]);
#pragma unroll
    for (int i = 0; i < PIECES_M; ++i) {
      split(a[i], a_rest);
#if SPLIT
      // Tensor cores cut off what exceeds their precision: only eight products are added there, the
      // smallest first, and their sum is added in float32.
      float part[PIECES_N][4] = {};
      multiply_add(part, a_rest, b);
      multiply_add(part, a[i], b_rest);
      multiply_add(part, a[i], b);
#pragma unroll
      for (int j = 0; j < PIECES_N; ++j) {
#pragma unroll
        for (int l = 0; l < 4; ++l) sums.of[i][j][l] += part[j][l];
      }
#else
      multiply_add(sums.of[i], a[i], b);
#endif
    }
#endif
  }
}

template <class Steps>
__device__ void multiply(Sums& sums, Steps& steps, int count) {
  for (; count > 0; --count) {
    auto stage = steps.next();
    multiply(sums, stage.a, stage.b);
  }
}

// Whether sums of an element are in several warps or blocks, and the distance between their rows, with which
// eight rows of pairs go to different banks.
constexpr bool GATHERED = SLICES * TILE_BLOCKS > 1;
constexpr int SUMS_ROW = TILE_N + 8;

// Leave the sums in shared memory for all threads of the cluster.
__device__ void add_slices(Sums& sums, void* memory) {
  if (!GATHERED) return;
  Lane lane;
  float* left = static_cast<float*>(memory) + (lane.slice * TILE_M + lane.m + lane.row) * SUMS_ROW +
                lane.n + 2 * lane.column;
  __syncthreads();  // what is overwritten was read
#pragma unroll
  for (int i = 0; i < 2 * PIECES_M; ++i) {
#pragma unroll
    for (int j = 0; j < PIECES_N; ++j) {
      const float* both = &sums.of[i / 2][j][i % 2 * 2];
      *reinterpret_cast<float2*>(left + 8 * i * SUMS_ROW + 8 * j) = make_float2(both[0], both[1]);
    }
  }
#if TILE_BLOCKS > 1
  meet();
#else
  __syncthreads();
#endif
}

// Add WIDTH neighbouring sums that a slice has left to others.
template <int WIDTH>
__device__ __forceinline__ void add_left(float (&sums)[WIDTH], const float* left) {
  using Type = typename Piece<WIDTH * sizeof(float)>::Type;
  alignas(sizeof(Type)) float parts[SLICES][WIDTH];
#pragma unroll
  for (int slice = 0; slice < SLICES; ++slice) {
    *reinterpret_cast<Type*>(parts[slice]) =
        *reinterpret_cast<const Type*>(left + slice * (TILE_M * SUMS_ROW));
  }
#pragma unroll
  for (int slice = 0; slice < SLICES; ++slice) {
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) sums[i] += parts[slice][i];
  }
}

// Write what all slices and blocks of the cluster have left, of which this block adds a part of the rows, by
// WIDTH neighbours at once, of which rows of C are a multiple.
template <int WIDTH, bool ALL, class T, class Ending>
__device__ __forceinline__ void store_gathered(T* to, int distance, int rows, int columns,
                                               const Ending& ending, const float* memory) {
  using Type = typename Piece<WIDTH * sizeof(T)>::Type;
  constexpr int ALONG = TILE_N / WIDTH, MOST_ROWS = (TILE_M + TILE_BLOCKS - 1) / TILE_BLOCKS;
  constexpr int COUNT = (MOST_ROWS * ALONG + THREADS - 1) / THREADS;  // of a thread
  int first = TILE_M * own_part() / TILE_BLOCKS, end = TILE_M * (own_part() + 1) / TILE_BLOCKS;
  float sums[COUNT][WIDTH] = {};
  auto own_place = [&](int i) { return first * ALONG + i * THREADS + static_cast<int>(threadIdx.x); };
  auto exists = [&](int place) {
    return place < end * ALONG && (ALL || (place / ALONG < rows && place % ALONG * WIDTH < columns));
  };
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    int place = own_place(i);
    if (!exists(place)) continue;
    const float* left = memory + place / ALONG * SUMS_ROW + place % ALONG * WIDTH;
#if TILE_BLOCKS > 1
#pragma unroll
    for (int block = 0; block < TILE_BLOCKS; ++block) add_left(sums[i], place_in_block(left, block));
#else
    add_left(sums[i], left);
#endif
  }
#if TILE_BLOCKS > 1
  arrive_in_cluster();  // before sums are stored, for which it would wait
#endif
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    int place = own_place(i), row = place / ALONG, column = place % ALONG * WIDTH;
    if (!exists(place)) continue;
    ending.template apply<ALL>(sums[i], row, column);
    alignas(sizeof(Type)) T results[WIDTH];
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) results[j] = T(sums[i][j]);
    T* there = to + row * distance + column;
    if (ALL || column + WIDTH <= columns) {
      *reinterpret_cast<Type*>(there) = *reinterpret_cast<const Type*>(results);
    } else {
#pragma unroll
      for (int j = 0; j < WIDTH; ++j) {
        if (column + j < columns) there[j] = results[j];
      }
    }
  }
}

// Write a thread's sums, with their end, to rows of `distance` elements, of which `rows` and `columns`
// exist, or ALL.
template <bool ALL, class T, class Ending>
__device__ void store(T* to, int distance, int rows, int columns, const Sums& sums,
                      const Ending& ending, void* memory) {
  if (GATHERED) {
    const float* left = static_cast<const float*>(memory);
    if (distance % 4 == 0) {
      store_gathered<4, ALL>(to, distance, rows, columns, ending, left);
    } else if (distance % 2 == 0) {
      store_gathered<2, ALL>(to, distance, rows, columns, ending, left);
    } else {
      store_gathered<1, ALL>(to, distance, rows, columns, ending, left);
    }
    return;
  }
  Lane lane;
#pragma unroll
  for (int i = 0; i < 2 * PIECES_M; ++i) {
    int row = lane.m + 8 * i + lane.row;
    if (!ALL && row >= rows) continue;
#pragma unroll
    for (int j = 0; j < PIECES_N; ++j) {
      int column = lane.n + 8 * j + 2 * lane.column;
      const float* both = &sums.of[i / 2][j][i % 2 * 2];
      float pair[2] = {both[0], both[1]};
      ending.template apply<ALL>(pair, row, column);
      store_pair<ALL>(to + row * distance + column, distance, columns - column, pair[0], pair[1]);
    }
  }
}
