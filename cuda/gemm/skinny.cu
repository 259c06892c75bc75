// C = A B with few rows, on the tensor cores of Hopper (sm_90a): elements of 16 bits, added in float32, or of
// 8 bits.
//
// Such a product takes as long as its B (the weights of a linear layer) takes to come from memory. The
// instruction therefore computes C^T = B^T A^T: 64 columns of C are its rows, and the rows of C, of which
// there may be 8, are its columns. The blocks of a cluster divide the steps of a tile, so that all
// multiprocessors load, and add their sums through each other's shared memory.
//
// Besides those of tiles.cu, end.cu and barriers.cu, the constants of this text are:
//   LDA, LDB           distances in elements between the stored rows of A and B
//   CONSUMERS          warpgroups that multiply, each 64 columns of C
//   COPYING_WARPS      warps that copy
//   B_KEPT             whether B may stay in the L2, since all of it fits
//   A_MAPPED, B_MAPPED whether a tensor map describes the matrix; otherwise threads copy it, since its rows
//                      are not a multiple of 16 bytes apart
//   MULTIPLY_ADD       the instruction, up to its operands: "wgmma ... .m64n16k16.f32.bf16.bf16"
//   SUMS_PLACES        its TILE_M / 2 sums in PTX, SUMS_OPERANDS in C++
//   LEFT_PLACE, RIGHT_PLACE, ADD_PLACE   its other operands
//   ALONG              its last operands: ", 1, 0" if columns of C are along lines of B, and its rows not along
//                      lines of A; "" for elements of 8 bits, for which neither can be
//   PROMOTED, B_SCALE_ROW   as in wgmma.cu
//   ROTATED            whether tiles begin at different steps

#include <cuda.h>

constexpr int LINE = 128 / sizeof(Element);  // elements of a line, whose pieces of 16 bytes are swizzled
constexpr int DEPTH = 32 / sizeof(Element);  // columns of A and rows of B in one instruction
// Of A, lines along the rows of C are copied whole: the instruction reads the TILE_M first elements.
constexpr int A_SIDE = A_TRANSPOSED ? (TILE_M + LINE - 1) / LINE * LINE : TILE_M;
constexpr int A_STAGE = A_SIDE * TILE_K, B_STAGE = TILE_N * TILE_K;
// A stage consists of boxes of so many lines.
constexpr int A_LINES = A_TRANSPOSED ? TILE_K : TILE_M, A_BOXES = A_STAGE / (A_LINES * LINE);
constexpr int B_LINES = B_TRANSPOSED ? TILE_N : TILE_K, B_BOXES = B_STAGE / (B_LINES * LINE);
constexpr int MAPPED_BYTES = ((A_MAPPED ? A_STAGE : 0) + (B_MAPPED ? B_STAGE : 0)) * sizeof(Element);
constexpr int COPIERS = 32 * COPYING_WARPS;
static_assert(THREADS == 128 * CONSUMERS + COPIERS, "a block has consumers and warps that copy");
static_assert(TILE_N == 64 * CONSUMERS && TILE_M % 8 == 0 && TILE_K % LINE == 0, "boxes fill the tile");

#if A_MAPPED
#define A_PARAMETER const __grid_constant__ CUtensorMap A
#else
#define A_PARAMETER const Element* __restrict__ A
#endif
#if B_MAPPED
#define B_PARAMETER const __grid_constant__ CUtensorMap B
#else
#define B_PARAMETER const Element* __restrict__ B
#endif

// ---- Copies by the tensor memory accelerator

// How long the L2 keeps B, which each block reads another part of. It would otherwise displace A, which all
// blocks read.
__device__ __forceinline__ unsigned long long policy_of_b() {
  unsigned long long policy;
#if B_KEPT
  asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
#else
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
  return policy;
}

__device__ __forceinline__ unsigned long long policy_of_a() {
  unsigned long long policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Copy the box of `map` whose first element is at (x, y) of matrix z, x being the inner dimension.
__device__ __forceinline__ void copy_box(Element* to, const CUtensorMap& map, int x, int y, int z,
                                         Barrier& full, unsigned long long policy) {
#if PRODUCTS > 1
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;"
      :: "r"(shared_address(to)), "l"(&map), "r"(x), "r"(y), "r"(z), "r"(shared_address(&full)),
         "l"(policy)
      : "memory");
#else
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;"
      :: "r"(shared_address(to)), "l"(&map), "r"(x), "r"(y), "r"(shared_address(&full)), "l"(policy)
      : "memory");
#endif
}

// ---- Copies by threads

[[maybe_unused]] constexpr int PIECES_OF_LINE = LINE / PIECE_ELEMENTS;
// Loads of a thread before it waits for them: more take too many registers.
[[maybe_unused]] constexpr int MOST_LOADS = 6;

constexpr int __host__ __device__ max_of(int a, int b) { return a > b ? a : b; }

// Warps that copy A and B where threads copy both: in proportion to their lines.
constexpr int WARPS_OF_A = COPYING_WARPS == 1 ? 1 : max_of(1, COPYING_WARPS * A_SIDE / (A_SIDE + TILE_N));
constexpr int A_COPIERS = 32 * (B_MAPPED ? 1 : WARPS_OF_A);
[[maybe_unused]] constexpr int B_COPIERS = COPYING_WARPS == 1 || A_MAPPED ? COPIERS : COPIERS - A_COPIERS;

// Copy the same BOXES as copy_box would, of MATRICES that follow one another, each of HEIGHT rows of LENGTH
// elements that are DISTANCE apart. A box has LINES lines, and the next one begins a line further in its rows.
// What lies outside of matrix z becomes 0. `thread` is one of THREADS_COPYING.
template <int MATRICES, int LENGTH, int HEIGHT, int DISTANCE, int LINES, int BOXES, int THREADS_COPYING>
__device__ __forceinline__ void copy_lines(Element* to, const Element* from, int x, int y, int z,
                                           int thread) {
  constexpr int ELEMENTS = MATRICES * HEIGHT * DISTANCE, ALL_LINES = BOXES * LINES;
  // A group may begin in any column of a transposed A.
  constexpr int UNIT = (DISTANCE % 2 == 0 && !GROUPED ? 2 : 1) * sizeof(Element);
  constexpr int AT_ONCE = THREADS_COPYING / PIECES_OF_LINE, EACH = (ALL_LINES + AT_ONCE - 1) / AT_ONCE;
  constexpr int LOADS = EACH < MOST_LOADS ? EACH : MOST_LOADS;
  int piece = thread % PIECES_OF_LINE;
#pragma unroll 1
  for (int first = thread / PIECES_OF_LINE; first < ALL_LINES; first += AT_ONCE * LOADS) {
    uint4 low[LOADS] = {}, high[LOADS] = {};
    int shift[LOADS], left[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
      int line = first + i * AT_ONCE, row = y + line % LINES;
      int column = x + line / LINES * LINE + piece * PIECE_ELEMENTS;
      int place = (z * HEIGHT + row) * DISTANCE + column;
      shift[i] = place % PIECE_ELEMENTS;
      left[i] = LENGTH - column;
      if (line < ALL_LINES && row < HEIGHT && left[i] > 0) {
        low[i] = read_piece<ELEMENTS>(from, place / PIECE_ELEMENTS);
        if (shift[i] + min(left[i], PIECE_ELEMENTS) > PIECE_ELEMENTS) {
          high[i] = read_piece<ELEMENTS>(from, place / PIECE_ELEMENTS + 1);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
      int line = first + i * AT_ONCE;
      if (line >= ALL_LINES) break;
      uint4 whole = shifted<UNIT>(low[i], high[i], shift[i] * sizeof(Element));
      if (left[i] < PIECE_ELEMENTS) whole = beginning(whole, left[i] * static_cast<int>(sizeof(Element)));
      reinterpret_cast<uint4*>(to + line * LINE)[piece ^ line % 8] = whole;
    }
  }
}

// ---- The steps of a block

// What comes at a step of those from `begin` to `end`. Of a transposed A with few rows, a step lies in few lines of the
// L2, which all blocks would ask for at once: tiles begin at different steps.
__device__ __forceinline__ int rotated(int step, int begin, int end, const Place& place) {
  if (ROTATED) step += static_cast<int>(1LL * (end - begin) * (place.column / TILE_N) / COLUMNS);
  return step < end ? step : step - (end - begin);
}

// The first element of an operand's boxes in a step that begins at column or row `k` of A or B.
__device__ __forceinline__ int x_of_a(Place place, int k) { return A_TRANSPOSED ? place.row : k; }
__device__ __forceinline__ int y_of_a(Place place, int k) { return A_TRANSPOSED ? k : place.row; }
__device__ __forceinline__ int x_of_b(Place place, int k) { return B_TRANSPOSED ? k : place.column; }
__device__ __forceinline__ int y_of_b(Place place, int k) { return B_TRANSPOSED ? place.column : k; }

// Let the tensor memory accelerator copy what maps describe.
template <class MatrixA, class MatrixB>
__device__ __forceinline__ void copy_mapped(Element* a_stage, Element* b_stage, const MatrixA& A,
                                            const MatrixB& B, Place place, int k, Barrier& full,
                                            unsigned long long of_a, unsigned long long of_b) {
  if (MAPPED_BYTES > 0) arrive_expecting(full, MAPPED_BYTES);
#if B_MAPPED
#pragma unroll
  for (int i = 0; i < B_BOXES; ++i) {
    copy_box(b_stage + i * B_LINES * LINE, B, x_of_b(place, k) + i * LINE, y_of_b(place, k),
             place.product, full, of_b);
  }
#endif
#if A_MAPPED
#pragma unroll
  for (int i = 0; i < A_BOXES; ++i) {
    copy_box(a_stage + i * A_LINES * LINE, A, x_of_a(place, k) + i * LINE, y_of_a(place, k),
             matrix_of(place), full, of_a);
  }
#endif
}

// Copy what no map describes. Where that is only A, each warp copies the A of another step, so that several
// are under way; otherwise all warps copy parts of a step.
template <class MatrixA, class MatrixB>
__device__ __forceinline__ void copy_others(Element* a_stage, Element* b_stage, const MatrixA& A,
                                            const MatrixB& B, Place place, int k, Barrier& full) {
  [[maybe_unused]] int thread = threadIdx.x - 128 * CONSUMERS;
#if !B_MAPPED
  if (thread < B_COPIERS) {
    copy_lines<PRODUCTS, B_TRANSPOSED ? K : N, B_TRANSPOSED ? N : K, LDB, B_LINES, B_BOXES, B_COPIERS>(
        b_stage, B, x_of_b(place, k), y_of_b(place, k), place.product, thread);
  }
#endif
#if !A_MAPPED
  if (B_MAPPED || COPIERS - thread <= A_COPIERS) {
    copy_lines<GROUPED ? 1 : PRODUCTS, A_TRANSPOSED ? M : K, A_TRANSPOSED ? K : M, LDA, A_LINES, A_BOXES,
               A_COPIERS>(a_stage, A, x_of_a(place, k), y_of_a(place, k), matrix_of(place),
                          (COPIERS - 1 - thread) % A_COPIERS);
  }
#endif
  written_for_async();
  arrive_as_warp(full);
}

// Where in a stage an operand begins, in elements.
constexpr int __host__ __device__ place_in_b(int n, int k) {
  return B_TRANSPOSED ? k / LINE * LINE * TILE_N + n * LINE + k % LINE : n * TILE_K + k * LINE;
}

constexpr int __host__ __device__ place_in_a(int k) {
  return A_TRANSPOSED ? k * LINE : k / LINE * LINE * TILE_M + k % LINE;
}

// How much further on a description is.
constexpr unsigned __host__ __device__ further(int elements) {
  return elements * static_cast<int>(sizeof(Element)) / DESCRIBED_BYTES;
}

// Begin to add a product.
__device__ __forceinline__ void multiply_add(float (&sums)[TILE_M / 2], unsigned long long left,
                                             unsigned long long right, int add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, " ADD_PLACE ", 0;\n"
      MULTIPLY_ADD " {" SUMS_PLACES "}, " LEFT_PLACE ", " RIGHT_PLACE ", add, 1, 1" ALONG
      ";\n"
      "}"
      : SUMS_OPERANDS
      : "l"(left), "l"(right), "r"(add));
}

// Wait for all products but those of the latest `others` steps.
template <int OTHERS>
__device__ __forceinline__ void finish(float (&sums)[TILE_M / 2]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(OTHERS) : "memory");
#pragma unroll
  for (int i = 0; i < TILE_M / 2; ++i) asm volatile("" : "+f"(sums[i]) :: "memory");
}

#if PROMOTED
// Sums in float32 of what instructions add in steps, whose sums of 8-bit elements have about 14 bits.
constexpr int BLOCK = 128;  // elements with a scale in common, along K and along columns of B
static_assert(TILE_K == BLOCK, "a step must be as long as a block");

// What a thread's sums of a step are multiplied with: of rows of A, and of all of its columns of B.
struct Factors {
#if SCALES == 3
  float of_rows[TILE_M / 4], of_columns;
#endif
};

__device__ __forceinline__ Factors factors_of(const float* a_scale, const float* b_scale, Place place,
                                              int within, int step) {
  Factors factors;
#if SCALES == 3
#pragma unroll
  for (int i = 0; i < TILE_M / 4; ++i) {
    int row = place.row + i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2;
    factors.of_rows[i] = row < M ? a_scale[step * M + row] : 0.0f;
  }
  int column = place.column + within;
  factors.of_columns = column < N ? b_scale[column / BLOCK * B_SCALE_ROW + step] : 0.0f;
#endif
  return factors;
}

__device__ __forceinline__ void promote(float (&totals)[TILE_M / 2], const float (&sums)[TILE_M / 2],
                                        const Factors& factors) {
#pragma unroll
  for (int i = 0; i < TILE_M / 2; ++i) {
#if SCALES == 3
    totals[i] = fmaf(factors.of_rows[i / 4 * 2 + i % 2] * factors.of_columns, sums[i], totals[i]);
#else
    totals[i] += sums[i];
#endif
  }
}
#endif

// ---- The sums of a cluster, in shared memory

// Each block adds and stores some of the tile's rows. It has room for those of each block of the cluster, in
// lines in which a warp's accesses are in different banks.
constexpr int OWN_ROWS = (TILE_M + TILE_BLOCKS - 1) / TILE_BLOCKS, SUMS_LINE = TILE_N + 4;
constexpr int SUMS_BEGIN = TILE_BLOCKS == 1 ? 0 : STAGES * (A_STAGE + B_STAGE);  // alone, it is done with its stages

// Write a sum to the shared memory of a block of the cluster.
__device__ __forceinline__ void write_sum(float* there, int rank, float sum) {
#if CLUSTERED
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "st.shared::cluster.f32 [there], %2;\n"
      "}"
      :: "r"(shared_address(there)), "r"(rank), "f"(sum) : "memory");
#else
  *there = sum;
#endif
}

// Give each row to the block that adds it. A thread has pairs of neighbouring rows of C, in eight columns of
// a warp's 16 (PTX ISA, "Register Fragments for wgmma.mma_async").
__device__ __forceinline__ void give(float* lines, const float (&sums)[TILE_M / 2], int rank, int rows) {
  int lane = threadIdx.x % 32, column = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < TILE_M / 2; ++i) {
    int row = i / 4 * 8 + lane % 4 * 2 + i % 2;
    float* line = lines + (rank * OWN_ROWS + row % OWN_ROWS) * SUMS_LINE;
    if (ALL_M || row < rows) write_sum(line + column + i % 4 / 2 * 8, row / OWN_ROWS, sums[i]);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
#if CLUSTERED
    __cluster_dims__(TILE_BLOCKS, 1, 1)
#endif
    gemm(A_PARAMETER, B_PARAMETER,
#if SCALES
         const float* __restrict__ a_scale, const float* __restrict__ b_scale,
#endif
#if WITH_BIAS
         const Result* __restrict__ bias,
#endif
#if WITH_RESIDUAL
         const Result* __restrict__ residual,
#endif
         Result* __restrict__ C) {
  extern __shared__ uint4 memory[];
  __shared__ Barrier full[STAGES], empty[STAGES];
  Element* b_stages = aligned<Element>(memory);
  Element* a_stages = b_stages + STAGES * B_STAGE;
  float* lines = reinterpret_cast<float*>(b_stages + SUMS_BEGIN);
  bool leader = threadIdx.x == 128 * CONSUMERS;
  if (leader) {
#if B_MAPPED
    prefetch_map(&B);
#endif
#if A_MAPPED
    prefetch_map(&A);
#endif
    for (int stage = 0; stage < STAGES; ++stage) {
      initialize(full[stage], (MAPPED_BYTES > 0) + (!B_MAPPED ? COPYING_WARPS : !A_MAPPED));
      initialize(empty[stage], CONSUMERS);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  arrive_in_cluster();  // before the first copies, for which it would wait

  int rank = blockIdx.x % TILE_BLOCKS;
  Place place = place_of(blockIdx.x / TILE_BLOCKS);
  int begin = STEPS * rank / TILE_BLOCKS, end = STEPS * (rank + 1) / TILE_BLOCKS, step = begin;
  Ring ring;
  auto k_of = [&](int at) { return rotated(at, begin, end, place) * TILE_K; };
  unsigned long long of_a = policy_of_a(), of_b = policy_of_b();
  follow();
  // The thread that has initialized the barriers need not wait for others to fill all stages.
  auto copy_next = [&] {
    wait(empty[ring.stage], ring.parity ^ 1);
    copy_mapped(a_stages + ring.stage * A_STAGE, b_stages + ring.stage * B_STAGE, A, B, place,
                k_of(step++), full[ring.stage], of_a, of_b);
    ring.advance();
  };
  if (MAPPED_BYTES > 0 && leader) {
    while (step < end && step < begin + STAGES) copy_next();
  }
  CommonScales scales = common_scales(A_SCALE, B_SCALE);
  __syncwarp();
  __syncthreads();

  if (own_warpgroup() >= CONSUMERS) {
    if (A_MAPPED && B_MAPPED) {
      while (leader && step < end) copy_next();
    } else {
      Ring copied;
      int warp = threadIdx.x / 32 - 4 * CONSUMERS, turns = COPYING_WARPS > 1 ? COPYING_WARPS - 1 : 1;
      for (int other = begin; other < end; ++other) {
        if (MAPPED_BYTES > 0 && leader && step < end && step <= other) copy_next();
        if (!B_MAPPED || (other - begin) % turns == warp - (COPYING_WARPS > 1)) {
          wait(empty[copied.stage], copied.parity ^ 1);
          copy_others(a_stages + copied.stage * A_STAGE, b_stages + copied.stage * B_STAGE, A, B, place,
                      k_of(other), full[copied.stage]);
        }
        copied.advance();
      }
    }
    let_next_begin();
    __syncwarp();
    wait_for_cluster();
  } else {
    float sums[TILE_M / 2] = {};
    int column = threadIdx.x / 128 * 64;
    unsigned long long left = described(b_stages + place_in_b(column, 0), TILE_K * 128, 1024);
    unsigned long long right = described(a_stages, TILE_K * 128, 1024);
    int before = 0;  // the stage of the step before
#if PROMOTED
    float part[TILE_M / 2];
    Factors factors = factors_of(A_SCALE, B_SCALE, place, column, begin);
#else
    float (&part)[TILE_M / 2] = sums;
#endif
    for (; step < end; ++step) {
      wait(full[ring.stage], ring.parity);
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
      for (int k = 0; k < TILE_K; k += DEPTH) {
        multiply_add(part, left + ring.stage * further(B_STAGE) + further(place_in_b(0, k)),
                     right + ring.stage * further(A_STAGE) + further(place_in_a(k)),
                     !PROMOTED || k > 0);
      }
      asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#if PROMOTED
      // What the next step needs is on its way meanwhile.
      Factors next = factors_of(A_SCALE, B_SCALE, place, column, min(step + 1, STEPS - 1));
      finish<0>(part);
      promote(sums, part, factors);
      factors = next;
#else
      finish<1>(sums);
#endif
      if (threadIdx.x % 128 == 0 && step > begin) arrive(empty[before]);
      before = ring.stage;
      ring.advance();
    }
    finish<0>(sums);
    wait_for_cluster();  // its blocks have begun; a block alone is done with its stages
    give(lines, sums, rank, place.end - place.row);
  }

  meet();
  int first = rank * OWN_ROWS, rows = min(min(OWN_ROWS, TILE_M - first), place.end - place.row - first);
  for (int i = threadIdx.x; i < rows * (TILE_N / 2); i += THREADS) {
    int row = i / (TILE_N / 2), column = i % (TILE_N / 2) * 2;
    const float* line = lines + row * SUMS_LINE + column;
    float pair[2] = {0.0f, 0.0f};
#pragma unroll
    for (int other = 0; other < TILE_BLOCKS; ++other) {
      float2 both = *reinterpret_cast<const float2*>(line + other * OWN_ROWS * SUMS_LINE);
      pair[0] += both.x;
      pair[1] += both.y;
    }
    end_at(place, BIAS, RESIDUAL, scales, A_SCALE, B_SCALE).apply<ALL_M && ALL_N>(pair, first + row, column);
    store_pair<ALL_N>(C + place_in_c(place) + (first + row) * LDC + column, LDC,
                      N - place.column - column, pair[0], pair[1]);
  }
}
