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
//   SPLIT              blocks of a cluster, which divide the steps of a tile
//   CONSUMERS          warpgroups that multiply, each 64 columns of C
//   COPYING_WARPS      warps that copy
//   A_MAPPED, B_MAPPED whether a tensor map describes the matrix; otherwise threads copy it, since its rows
//                      are not a multiple of 16 bytes apart
//   MULTIPLY_ADD       the instruction, up to its operands: "wgmma ... .m64n16k16.f32.bf16.bf16"
//   SUMS_PLACES        its TILE_M / 2 sums in PTX, SUMS_OPERANDS in C++
//   LEFT_PLACE, RIGHT_PLACE, ADD_PLACE   its other operands
//   ALONG              its last operands: ", 1, 0" if columns of C are along lines of B, and its rows not along
//                      lines of A; "" for elements of 8 bits, for which neither can be
//   PROMOTED, B_SCALE_ROW   as in wgmma.cu

#include <cuda.h>

constexpr int LINE = 128 / sizeof(Element);  // elements of a line, whose pieces of 16 bytes are swizzled
constexpr int DEPTH = 32 / sizeof(Element);  // columns of A and rows of B in one instruction
// Of A, lines along the rows of C are copied whole: the instruction reads the TILE_M first elements.
constexpr int A_SIDE = A_TRANSPOSED ? (TILE_M + LINE - 1) / LINE * LINE : TILE_M;
constexpr int A_STAGE = A_SIDE * TILE_K, B_STAGE = TILE_N * TILE_K;
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

// What is read once shall not displace from the L2 what is read again.
__device__ __forceinline__ unsigned long long read_once() {
  unsigned long long policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ __forceinline__ unsigned long long read_again() {
  unsigned long long policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ __forceinline__ void copy_box(Element* to, const CUtensorMap& map, int x, int y,
                                         Barrier& full, unsigned long long policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;"
      :: "r"(shared_address(to)), "l"(&map), "r"(x), "r"(y), "r"(shared_address(&full)), "l"(policy)
      : "memory");
}

// ---- Copies by threads

constexpr int PIECE = 16 / sizeof(Element), PIECES_OF_LINE = LINE / PIECE;

// Read the aligned piece of this number of a matrix of COUNT elements; what lies beyond becomes 0.
template <int COUNT>
__device__ __forceinline__ uint4 read_piece(const Element* from, int number) {
  if (COUNT % PIECE == 0 || number < COUNT / PIECE) {
    return reinterpret_cast<const uint4*>(from)[number];
  }
  alignas(16) Element piece[PIECE];
#pragma unroll
  for (int i = 0; i < PIECE; ++i) {
    piece[i] = number * PIECE + i < COUNT ? from[number * PIECE + i] : Element(0.0f);
  }
  return *reinterpret_cast<const uint4*>(piece);
}

// The eight elements that begin `shift` elements into two pieces of eight.
template <bool EVEN>
__device__ __forceinline__ uint4 shifted(const uint4& low, const uint4& high, int shift) {
  unsigned words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int i = 0; i < 6; ++i) words[i] = shift & 4 ? words[i + 2] : words[i];
#pragma unroll
  for (int i = 0; i < 5; ++i) words[i] = shift & 2 ? words[i + 1] : words[i];
  if (!EVEN) {
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = __funnelshift_r(words[i], words[i + 1], shift % 2 * 16);
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// The first elements of a piece; the others become 0.
__device__ __forceinline__ uint4 beginning(const uint4& piece, int count) {
  unsigned words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    words[i] &= count > 2 * i + 1 ? ~0u : count > 2 * i ? 0xFFFFu : 0u;
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// Copy the same box as copy_box would of a matrix of HEIGHT rows of LENGTH elements that are DISTANCE
// apart: LINES lines from the element (x, y) on. What lies outside becomes 0.
template <int LENGTH, int HEIGHT, int DISTANCE, int LINES>
__device__ __forceinline__ void copy_lines(Element* to, const Element* from, int x, int y) {
  constexpr int AT_ONCE = COPIERS / PIECES_OF_LINE, LOADS = 4;  // of a thread, before it waits for them
  int thread = threadIdx.x % COPIERS, piece = thread % PIECES_OF_LINE;
  int left = LENGTH - x - piece * PIECE;
#pragma unroll 1
  for (int first = thread / PIECES_OF_LINE; first < LINES; first += AT_ONCE * LOADS) {
    uint4 low[LOADS] = {}, high[LOADS] = {};
    int shift[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
      int line = first + i * AT_ONCE, place = (y + line) * DISTANCE + x + piece * PIECE;
      shift[i] = place % PIECE;
      if (line < LINES && y + line < HEIGHT && left > 0) {
        low[i] = read_piece<HEIGHT * DISTANCE>(from, place / PIECE);
        if (shift[i] + min(left, PIECE) > PIECE) {
          high[i] = read_piece<HEIGHT * DISTANCE>(from, place / PIECE + 1);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
      int line = first + i * AT_ONCE;
      if (line >= LINES) break;
      uint4 whole = shifted<DISTANCE % 2 == 0>(low[i], high[i], shift[i]);
      if (left < PIECE) whole = beginning(whole, left);
      reinterpret_cast<uint4*>(to + line * LINE)[piece ^ line % 8] = whole;
    }
  }
}

// ---- The steps of a block

// Copy a step, of which `place` and `k` are the beginning.
template <class MatrixA, class MatrixB>
__device__ __forceinline__ void copy_step(Element* a_stage, Element* b_stage, const MatrixA& A,
                                          const MatrixB& B, Place place, int k, Barrier& full,
                                          unsigned long long once, unsigned long long again) {
  bool leader = threadIdx.x == 128 * CONSUMERS;
  if (MAPPED_BYTES > 0 && leader) arrive_expecting(full, MAPPED_BYTES);
#pragma unroll
  for (int i = 0; i < (B_TRANSPOSED ? TILE_K : TILE_N); i += LINE) {
    Element* to = b_stage + i * (B_TRANSPOSED ? TILE_N : TILE_K);
    int x = B_TRANSPOSED ? k + i : place.column + i, y = B_TRANSPOSED ? place.column : k;
#if B_MAPPED
    if (leader) copy_box(to, B, x, y, full, once);
#else
    copy_lines<B_TRANSPOSED ? K : N, B_TRANSPOSED ? N : K, LDB, B_TRANSPOSED ? TILE_N : TILE_K>(
        to, B, x, y);
#endif
  }
#pragma unroll
  for (int i = 0; i < (A_TRANSPOSED ? A_SIDE : TILE_K); i += LINE) {
    Element* to = a_stage + i * (A_TRANSPOSED ? TILE_K : TILE_M);
    int x = A_TRANSPOSED ? place.row + i : k + i, y = A_TRANSPOSED ? k : place.row;
#if A_MAPPED
    if (leader) copy_box(to, A, x, y, full, again);
#else
    copy_lines<A_TRANSPOSED ? M : K, A_TRANSPOSED ? K : M, LDA, A_TRANSPOSED ? TILE_K : TILE_M>(
        to, A, x, y);
#endif
  }
  if (!A_MAPPED || !B_MAPPED) {
    written_for_async();
    arrive_as_warp(full);
  }
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

// ---- The sums of a block, in shared memory: TILE_M rows

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
                                              int warpgroup, int step) {
  Factors factors;
#if SCALES == 3
#pragma unroll
  for (int i = 0; i < TILE_M / 4; ++i) {
    int row = place.row + i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2;
    factors.of_rows[i] = row < M ? a_scale[step * M + row] : 0.0f;
  }
  int column = place.column + 64 * warpgroup;
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

constexpr int SUMS_ROW = TILE_N + 4;  // in which a warp's accesses are in different banks

// A thread has pairs of neighbouring rows of C, in eight columns of a warp's 16 (PTX ISA, "Register
// Fragments for wgmma.mma_async").
__device__ __forceinline__ void keep(float* rows, const float (&sums)[TILE_M / 2]) {
  int lane = threadIdx.x % 32, column = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < TILE_M / 2; ++i) {
    rows[(i / 4 * 8 + lane % 4 * 2 + i % 2) * SUMS_ROW + column + i % 4 / 2 * 8] = sums[i];
  }
}

// Read two neighbouring sums of a block of the cluster.
__device__ __forceinline__ float2 read_sums(const float* there, int rank) {
#if CLUSTERED
  float2 both;
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %2, %3;\n"
      "ld.shared::cluster.v2.f32 {%0, %1}, [there];\n"
      "}"
      : "=f"(both.x), "=f"(both.y) : "r"(shared_address(there)), "r"(rank) : "memory");
  return both;
#else
  return *reinterpret_cast<const float2*>(there);
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS)
#if CLUSTERED
    __cluster_dims__(SPLIT, 1, 1)
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
  float* rows = reinterpret_cast<float*>(b_stages);  // once all steps are multiplied
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; ++stage) {
      initialize(full[stage], (MAPPED_BYTES > 0) + (A_MAPPED && B_MAPPED ? 0 : COPYING_WARPS));
      initialize(empty[stage], CONSUMERS);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();

  int rank = blockIdx.x % SPLIT;
  Place place = place_of(blockIdx.x / SPLIT);
  int begin = STEPS * rank / SPLIT, end = STEPS * (rank + 1) / SPLIT;
  Ring ring;
  float sums[TILE_M / 2] = {};
  int warpgroup = own_warpgroup();
  if (warpgroup >= CONSUMERS) {
    if (!A_MAPPED || !B_MAPPED || threadIdx.x == 128 * CONSUMERS) {
      unsigned long long once = read_once(), again = read_again();
      for (int step = begin; step < end; ++step) {
        wait(empty[ring.stage], ring.parity ^ 1);
        copy_step(a_stages + ring.stage * A_STAGE, b_stages + ring.stage * B_STAGE, A, B, place,
                  step * TILE_K, full[ring.stage], once, again);
        ring.advance();
      }
    }
  } else {
    unsigned long long left = described(b_stages + place_in_b(64 * warpgroup, 0), TILE_K * 128, 1024);
    unsigned long long right = described(a_stages, TILE_K * 128, 1024);
    int before = 0;  // the stage of the step before
#if PROMOTED
    float part[TILE_M / 2];
    Factors factors = factors_of(A_SCALE, B_SCALE, place, warpgroup, begin);
#else
    float (&part)[TILE_M / 2] = sums;
#endif
    for (int step = begin; step < end; ++step) {
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
      Factors next = factors_of(A_SCALE, B_SCALE, place, warpgroup, min(step + 1, STEPS - 1));
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
  }

  __syncthreads();  // nothing is read or copied any more where the sums are kept
  if (warpgroup < CONSUMERS) keep(rows, sums);
  meet();
  for (int i = rank * THREADS + threadIdx.x; i < TILE_M * TILE_N / 2; i += SPLIT * THREADS) {
    int row = i / (TILE_N / 2), column = i % (TILE_N / 2) * 2;
    if (place.row + row >= M) break;
    float pair[2] = {0.0f, 0.0f};
#pragma unroll
    for (int other = 0; other < SPLIT; ++other) {
      float2 both = read_sums(rows + row * SUMS_ROW + column, other);
      pair[0] += both.x;
      pair[1] += both.y;
    }
    end_at(place, BIAS, RESIDUAL, A_SCALE, B_SCALE).apply<ALL_M && ALL_N>(pair, row, column);
    store_pair<ALL_N>(C + (place.row + row) * LDC + place.column + column, LDC,
                      N - place.column - column, pair[0], pair[1]);
  }
#if CLUSTERED
  meet();  // others read the sums of this block
#endif
}
