// C = A B of float32 matrices on the tensor cores of Hopper (sm_90a), in TF32 or split into two.
//
// Besides those of tiles.cu, the constants of this text are:
//   CONSUMERS          warpgroups that multiply, each 64 columns of the tile
//   OTHER_REGISTERS, CONSUMER_REGISTERS   of a thread of the other warpgroup, and of those
//   SPLIT              whether elements are split (3xtf32), as in mma.cu
//   MULTIPLY_ADD       the instruction, up to its operands: "wgmma ... .m64n128k8.f32.tf32.tf32"
//   SUMS_PLACES        its TILE_M / 2 sums in PTX, SUMS_OPERANDS in C++
//   FIRST_PLACES, SECOND_PLACE, ADD_PLACE   its other operands
//
// The instruction takes its second operand from shared memory only, with consecutive k in a line, and
// TF32 cannot be transposed there. C^T = B^T A^T is computed: B^T comes from registers, which can be
// read in any order, and A has its elements in the right order if it is not stored transposed.
//
// The last warpgroup prepares what the others multiply. One thread lets the tensor memory accelerator
// copy boxes of A and B; three warps write what instructions cannot take as it is: the transpose of
// A, and the smaller parts of its elements. The larger part of an element needs no writing, since
// instructions ignore the bits that TF32 does not have.
//
// Tensor cores cut off what exceeds their precision, so they add the products of one step only. The
// sums of steps are added in float32.

constexpr int DEPTH = 8;  // rows of B^T and A^T in one instruction
constexpr int LINE = 32;  // elements in the 128 bytes whose pieces of 16 are swizzled
constexpr int A_STAGE = TILE_M * TILE_K, B_STAGE = TILE_K * TILE_N;
constexpr int STAGE_BYTES = (A_STAGE + B_STAGE) * sizeof(Element);
constexpr int PREPARERS = 96;  // threads
constexpr bool PREPARED = SPLIT || A_TRANSPOSED;
static_assert(THREADS == 128 * (CONSUMERS + 1), "one warpgroup prepares");
static_assert(TILE_N == 64 * CONSUMERS, "each consumer has 64 columns");
static_assert(TILE_M % LINE == 0 && TILE_K == LINE, "boxes must fill the tile");

// Transposed: a thread's part of 64 columns and TILE_M rows of C.
struct Sums {
  float of[TILE_M / 2];
};

// What is in shared memory for one step. Without need for them, the last two are empty.
struct Stage {
  Element *a, *b, *turned_a, *rest_of_a;
};

constexpr int STAGE_ELEMENTS = A_STAGE * (1 + A_TRANSPOSED + SPLIT) + B_STAGE;

__device__ __forceinline__ Stage stage_at(Element* stages, int number) {
  Element* a = stages + number * STAGE_ELEMENTS;
  Element* b = a + A_STAGE;
  Element* turned_a = b + B_STAGE;
  return {a, b, turned_a, turned_a + A_TRANSPOSED * A_STAGE};
}

// An element in swizzled lines.
__device__ __forceinline__ int place_in(int line, int column) {
  return line * LINE + ((column / 4 ^ line % 8) * 4 | column % 4);
}

// What is lost when the bits are ignored that TF32 does not have.
__device__ __forceinline__ float rest_of(float x) {
  return x - __uint_as_float(__float_as_uint(x) & 0xFFFFE000);
}

// ---- The producer

__device__ __forceinline__ void copy_step(const Stage& stage, const CUtensorMap& a_map,
                                          const CUtensorMap& b_map, Place place, int k,
                                          Barrier& full) {
  arrive_expecting(full, STAGE_BYTES);
#if A_TRANSPOSED
  for (int m = 0; m < TILE_M; m += LINE) {
    copy_box(stage.a + m * TILE_K, a_map, place.row + m, k, full);
  }
#else
  copy_box(stage.a, a_map, k, place.row, full);
#endif
  for (int n = 0; n < TILE_N; n += LINE) {
    copy_box(stage.b + n * TILE_K, b_map, place.column + n, k, full);
  }
}

// ---- The preparers

__device__ __forceinline__ float4 rest_of(float4 x) {
  return {rest_of(x.x), rest_of(x.y), rest_of(x.z), rest_of(x.w)};
}

// Four elements of a row of A at a time: the order of lines and swizzling stays, or is that of rows.
__device__ __forceinline__ void prepare(const Stage& stage, int thread) {
  for (int i = thread; i < A_STAGE / 4; i += PREPARERS) {
#if A_TRANSPOSED
    int m = i % TILE_M, k = i / TILE_M * 4;
    float4 piece;
    float* parts = &piece.x;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      parts[j] = stage.a[m / LINE * LINE * TILE_K + place_in(k + j, m % LINE)];
    }
    int there = place_in(m, k);
    *reinterpret_cast<float4*>(stage.turned_a + there) = piece;
#else
    int there = 4 * i;
    float4 piece = *reinterpret_cast<const float4*>(stage.a + there);
#endif
#if SPLIT
    *reinterpret_cast<float4*>(stage.rest_of_a + there) = rest_of(piece);
#endif
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // instructions read it next
}

// ---- The consumers

// Rows of B^T, as an instruction takes them from the registers of a thread.
struct Rows {
  unsigned of[4];
};

__device__ __forceinline__ Rows rows_of_b(const Element* b, int n, int k, bool rest) {
  int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  Rows rows;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    int column = n + warp * 16 + i % 2 * 8 + lane / 4, row = k + i / 2 * 4 + lane % 4;
    float x = b[column / LINE * LINE * TILE_K + place_in(row, column % LINE)];
    rows.of[i] = __float_as_uint(rest ? rest_of(x) : x);
  }
  return rows;
}

__device__ __forceinline__ unsigned long long columns_of_a(const Element* a, int k) {
  return described(a + k, 0, 1024);
}

// Begin to add a product, or to set the sums to it.
__device__ __forceinline__ void multiply_add(float (&sums)[TILE_M / 2], const Rows& rows,
                                             unsigned long long columns, int add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, " ADD_PLACE ", 0;\n"
      MULTIPLY_ADD " {" SUMS_PLACES "}, {" FIRST_PLACES "}, " SECOND_PLACE ", add, 1, 1;\n"
      "}"
      : SUMS_OPERANDS
      : "r"(rows.of[0]), "r"(rows.of[1]), "r"(rows.of[2]), "r"(rows.of[3]), "l"(columns), "r"(add));
}

// Add the products of a step; those of smaller parts first.
__device__ __forceinline__ void multiply(Sums& sums, const Stage& stage, int n) {
  constexpr int COUNT = TILE_K / DEPTH;
  const Element* a = A_TRANSPOSED ? stage.turned_a : stage.a;
  Rows rows[COUNT], rest[COUNT];
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    rows[i] = rows_of_b(stage.b, n, i * DEPTH, false);
    if (SPLIT) rest[i] = rows_of_b(stage.b, n, i * DEPTH, true);
  }
  float part[TILE_M / 2];
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#if SPLIT
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    multiply_add(part, rest[i], columns_of_a(a, i * DEPTH), i > 0);
    multiply_add(part, rows[i], columns_of_a(stage.rest_of_a, i * DEPTH), 1);
  }
#endif
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    multiply_add(part, rows[i], columns_of_a(a, i * DEPTH), SPLIT || i > 0);
  }
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (int j = 0; j < TILE_M / 2; ++j) {
    asm volatile("" : "+f"(part[j]) :: "memory");
    sums.of[j] += part[j];
  }
}

// Write a thread's sums to rows of `distance` elements, of which `rows` and `columns` exist, or ALL.
template <bool ALL>
__device__ __forceinline__ void store(float* to, int distance, int rows, int columns, int n,
                                      const Sums& sums) {
  int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    int column = n + warp * 16 + i * 8 + lane / 4;
    if (!ALL && column >= columns) continue;
#pragma unroll
    for (int j = 0; j < TILE_M / 4; ++j) {
      int row = j / 2 * 8 + 2 * (lane % 4) + j % 2;
      if (ALL || row < rows) to[row * distance + column] = sums.of[j / 2 * 4 + i * 2 + j % 2];
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    gemm(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
         Element* __restrict__ C
#if SHARED_TILES
         , float* __restrict__ parts
#endif
    ) {
  extern __shared__ uint4 memory[];
  __shared__ Barrier full[STAGES], ready[STAGES], empty[STAGES];
  Element* stages = aligned<Element>(memory);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; ++stage) {
      initialize(full[stage], 1);
      initialize(ready[stage], PREPARERS / 32);
      initialize(empty[stage], 4 * CONSUMERS);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();

  int block = blockIdx.x, last = first_step(block + 1), warpgroup = threadIdx.x / 128;
  Ring ring;
  if (warpgroup == CONSUMERS) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(OTHER_REGISTERS));
    int thread = threadIdx.x % 128 - 32;  // of the preparers
    if (thread == -32) {
      for (int now = first_step(block); now < last; ++now) {
        wait(empty[ring.stage], ring.parity ^ 1);
        copy_step(stage_at(stages, ring.stage), a_map, b_map, place_of(now / STEPS),
                  now % STEPS * TILE_K, full[ring.stage]);
        ring.advance();
      }
    } else if (PREPARED && thread >= 0) {
      for (int now = first_step(block); now < last; ++now) {
        wait(full[ring.stage], ring.parity);
        prepare(stage_at(stages, ring.stage), thread);
        arrive_as_warp(ready[ring.stage]);
        ring.advance();
      }
    }
    return;
  }

  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(CONSUMER_REGISTERS));
  int n = warpgroup * 64;
  for (int now = first_step(block); now < last;) {
    int tile = now / STEPS, begin = now % STEPS, end = min(STEPS, begin + last - now);
    Place place = place_of(tile);
    Sums sums = {};
    for (int step = begin; step < end; ++step) {
      wait(full[ring.stage], ring.parity);
      if (PREPARED) wait(ready[ring.stage], ring.parity);
      multiply(sums, stage_at(stages, ring.stage), n);
      arrive_as_warp(empty[ring.stage]);  // each has read rows itself
      ring.advance();
    }
    bool whole = begin == 0 && end == STEPS;
    if (!SHARED_TILES || whole) {
      store<ALL_M && ALL_N>(C + place.row * N + place.column, N, M - place.row, N - place.column,
                            n, sums);
    }
#if SHARED_TILES
    // A block has at most one tile that others have begun, and one that others finish.
    if (!whole) {
      float* part = parts + (2LL * block + (begin == 0)) * (TILE_M * TILE_N);
      store<true>(part, TILE_N, TILE_M, TILE_N, n, sums);
    }
#endif
    now += end - begin;
  }
}
