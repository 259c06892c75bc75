// C = A B on the tensor cores of Hopper (sm_90a): elements of 16 bits, added in float32.
//
// Besides those of tiles.cu, the constants of this text are:
//   CONSUMERS          warpgroups that multiply; one more, the producer, copies
//   OTHER_REGISTERS, CONSUMER_REGISTERS   of a thread
//   MULTIPLY_ADD       the instruction, up to its operands: "wgmma ... .m64n256k16.f32.bf16.bf16"
//   SUMS_PLACES        its TILE_N / 2 sums in PTX, SUMS_OPERANDS in C++
//   A_PLACE, B_PLACE, ADD_PLACE   its other operands; A_ALONG: 1 if rows of C are along lines of A
//
// The producer lets the tensor memory accelerator copy boxes of A and B to shared memory, described
// by tensor maps: what lies outside the matrices becomes 0. The consumers multiply directly from
// there, each its own rows of the tile. Barriers in shared memory tell when a stage is full, that is,
// when all of its bytes have arrived, and when it is empty again.

constexpr int DEPTH = 16;  // columns of A and rows of B in one instruction
constexpr int LINE = 64;   // elements in the 128 bytes whose pieces of 16 are swizzled
constexpr int OWN_M = TILE_M / CONSUMERS, PIECES = OWN_M / 64;
constexpr int A_STAGE = TILE_M * TILE_K, B_STAGE = TILE_K * TILE_N;
constexpr int STAGE_BYTES = (A_STAGE + B_STAGE) * sizeof(Element);
static_assert(THREADS == 128 * (CONSUMERS + 1), "one warpgroup copies");
static_assert(TILE_M == OWN_M * CONSUMERS && OWN_M == 64 * PIECES, "rows must be divided evenly");
static_assert(TILE_N % LINE == 0 && TILE_K % LINE == 0, "boxes must fill the tile");

struct Sums {
  float of[PIECES][TILE_N / 2];
};

// ---- The producer

// A stage consists of boxes as high as the tile, in each of which a row is a line.
__device__ __forceinline__ void copy_step(Element* a_stage, Element* b_stage,
                                          const CUtensorMap& a_map, const CUtensorMap& b_map,
                                          Place place, int k, Barrier& full) {
  arrive_expecting(full, STAGE_BYTES);
#if A_TRANSPOSED
  for (int m = 0; m < TILE_M; m += LINE) {
    copy_box(a_stage + m * TILE_K, a_map, place.row + m, k, full);
  }
#else
  for (int i = 0; i < TILE_K; i += LINE) {
    copy_box(a_stage + i * TILE_M, a_map, k + i, place.row, full);
  }
#endif
  for (int n = 0; n < TILE_N; n += LINE) {
    copy_box(b_stage + n * TILE_K, b_map, place.column + n, k, full);
  }
}

// ---- The consumers

__device__ __forceinline__ unsigned long long part_of_a(const Element* stage, int m, int k) {
#if A_TRANSPOSED
  const Element* start = stage + m * TILE_K + k * LINE;
#else
  const Element* start = stage + k / LINE * LINE * TILE_M + m * LINE + k % LINE;
#endif
  return described(start, TILE_K * 128, 1024);
}

__device__ __forceinline__ unsigned long long part_of_b(const Element* stage, int k) {
  return described(stage + k * LINE, TILE_K * 128, 1024);
}

// Begin to add a product, or to set the sums to it.
__device__ __forceinline__ void multiply_add(float (&sums)[TILE_N / 2], unsigned long long a,
                                             unsigned long long b, int add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, " ADD_PLACE ", 0;\n"
      MULTIPLY_ADD " {" SUMS_PLACES "}, " A_PLACE ", " B_PLACE ", add, 1, 1, " A_ALONG ", 1;\n"
      "}"
      : SUMS_OPERANDS
      : "l"(a), "l"(b), "r"(add));
}

__device__ __forceinline__ void multiply(Sums& sums, const Element* a_stage, const Element* b_stage,
                                         int m, bool first) {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (int k = 0; k < TILE_K; k += DEPTH) {
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
      multiply_add(sums.of[i], part_of_a(a_stage, m + 64 * i, k), part_of_b(b_stage, k),
                   k > 0 || !first);
    }
  }
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Wait for all products but those of the latest `others` steps.
template <int OTHERS>
__device__ __forceinline__ void finish(Sums& sums) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(OTHERS) : "memory");
#pragma unroll
  for (int i = 0; i < PIECES; ++i) {
#pragma unroll
    for (int j = 0; j < TILE_N / 2; ++j) asm volatile("" : "+f"(sums.of[i][j]) :: "memory");
  }
}

// Write a thread's sums to rows of `distance` elements, of which `rows` and `columns` exist, or ALL.
template <bool ALL, class T>
__device__ __forceinline__ void store(T* to, int distance, int rows, int columns, int m,
                                      const Sums& sums) {
  int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 2 * PIECES; ++i) {
    int row = m + i / 2 * 64 + warp * 16 + i % 2 * 8 + lane / 4;
    if (!ALL && row >= rows) continue;
#pragma unroll
    for (int j = 0; j < TILE_N / 8; ++j) {
      int column = 8 * j + 2 * (lane % 4);
      const float* pair = &sums.of[i / 2][4 * j + i % 2 * 2];
      store_pair<ALL>(to + row * distance + column, distance, columns - column, pair[0], pair[1]);
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
  __shared__ Barrier full[STAGES], empty[STAGES];
  Element* a_stages = aligned<Element>(memory);
  Element* b_stages = a_stages + STAGES * A_STAGE;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; ++stage) {
      initialize(full[stage], 1);
      initialize(empty[stage], CONSUMERS);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();

  int block = blockIdx.x, last = first_step(block + 1), warpgroup = threadIdx.x / 128;
  Ring ring;
  if (warpgroup == CONSUMERS) {
#if CONSUMERS > 1
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(OTHER_REGISTERS));
#endif
    if (threadIdx.x % 128 == 0) {
      for (int now = first_step(block); now < last; ++now) {
        wait(empty[ring.stage], ring.parity ^ 1);
        copy_step(a_stages + ring.stage * A_STAGE, b_stages + ring.stage * B_STAGE, a_map, b_map,
                  place_of(now / STEPS), now % STEPS * TILE_K, full[ring.stage]);
        ring.advance();
      }
    }
    return;
  }

#if CONSUMERS > 1
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(CONSUMER_REGISTERS));
#endif
  int m = warpgroup * OWN_M;
  bool tells = threadIdx.x % 128 == 0;
  for (int now = first_step(block); now < last;) {
    int tile = now / STEPS, begin = now % STEPS, end = min(STEPS, begin + last - now);
    Place place = place_of(tile);
    Sums sums;
    int before = 0;  // the stage of the step before
    for (int step = begin; step < end; ++step) {
      wait(full[ring.stage], ring.parity);
      multiply(sums, a_stages + ring.stage * A_STAGE, b_stages + ring.stage * B_STAGE, m,
               step == begin);
      finish<1>(sums);
      if (tells && step > begin) arrive(empty[before]);
      before = ring.stage;
      ring.advance();
    }
    finish<0>(sums);
    if (tells) arrive(empty[before]);
    bool whole = begin == 0 && end == STEPS;
    if (!SHARED_TILES || whole) {
      store<ALL_M && ALL_N>(C + place.row * N + place.column, N, M - place.row, N - place.column,
                            m, sums);
    }
#if SHARED_TILES
    // A block has at most one tile that others have begun, and one that others finish.
    if (!whole) {
      float* part = parts + (2LL * block + (begin == 0)) * (TILE_M * TILE_N);
      store<true>(part, TILE_N, TILE_M, TILE_N, m, sums);
    }
#endif
    now += end - begin;
  }
}
