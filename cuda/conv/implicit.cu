// Convolutions on the tensor cores of Hopper (sm_90a), in TF32, split into two, or of 16-bit elements.
//
// Besides those of windows.cu and barriers.cu, the constants of this text are:
//   SPLIT              whether elements are split (3xtf32), as in gemm/mma.cu
//   CONSUMERS          warpgroups that multiply, each for 64 pixels; one more copies
//   THREADS, RESIDENT  of a block, and blocks of a multiprocessor
//   REASSIGNED, OTHER_REGISTERS, CONSUMER_REGISTERS   whether registers of the one that copies are given
//                      to the others, and how many a thread has then
//   STAGES             steps that are in shared memory or on the way there
//   BLOCKS             number of blocks, or of clusters, which compute tiles in turn
//   SPLITS             blocks of a cluster, which share the steps of a tile
//   MULTIPLY_ADD       the instruction, up to its operands: "wgmma ... .m64n128k8.f32.tf32.tf32"
//   SUMS_PLACES        its TILE_C / 2 sums in PTX, SUMS_OPERANDS in C++
//   DIRECT             whether it takes both operands from shared memory
//   FIRST_PLACES, SECOND_PLACE, ADD_PLACE   its other operands; LAST_OPERANDS: what follows them
//
// Pixels are the rows of a product whose columns are channels. The instruction takes weights from shared
// memory. It takes elements of windows from there, too, unless they are split or, in TF32, have another
// inner dimension than the weights: then they come from registers, which are read from lines of either
// layout. The last warpgroup copies both, some steps ahead, and writes the smaller parts of split weights.
// Barriers in shared memory tell when a stage is full, and when it is empty again.
//
// Tensor cores cut off what exceeds their precision. In 3xtf32, they add the products of one step only,
// and the sums of steps are added in float32.

constexpr int DEPTH = 32 / sizeof(Element);  // products of each sum in one instruction
constexpr int COUNT = LINE / DEPTH;  // instructions of a step
constexpr int STAGE = P_STAGE + (1 + SPLIT) * C_STAGE;
constexpr int AHEAD = STAGES > 2 ? STAGES - 2 : 1;  // steps whose copies are under way
constexpr int WARPS = 4;  // that copy
static_assert(TILE_P == 64 * CONSUMERS && THREADS == 128 * (CONSUMERS + 1), "64 pixels a warpgroup");
static_assert(SPLITS <= STEPS && (SPLITS == 1 || BLOCKS == TILES), "each block has a step of a tile");

// A thread's sums: in each eight channels, two neighbouring ones of two pixels.
struct Sums {
  float of[TILE_C / 2];
};

struct Stage {
  Element *pixels, *weights, *rest_of_weights;  // the last one only if they are split
};

__device__ __forceinline__ Stage stage_at(Element* stages, int number) {
  Element* pixels = stages + number * STAGE;
  return {pixels, pixels + P_STAGE, pixels + P_STAGE + C_STAGE};
}

// What is lost when the bits are ignored that TF32 does not have.
__device__ __forceinline__ float rest_of(float x) {
  return x - __uint_as_float(__float_as_uint(x) & 0xFFFFE000);
}

// ---- The warpgroup that copies

__device__ __forceinline__ void meet_copying() {
  asm volatile("bar.sync 1, 128;" ::: "memory");
}

// The copies of this thread for the oldest step are in shared memory: the stage is full after all threads.
__device__ __forceinline__ void finish_stage(const Stage& stage, int thread, Barrier& full) {
#if SPLIT
  for_weights<WARPS>(thread, [&](int place, int, int) {
#pragma unroll
    for (int i = 0; i < WEIGHT_WIDTH; ++i) {
      stage.rest_of_weights[place + i] = rest_of(stage.weights[place + i]);
    }
  });
#endif
  written_for_async();
  arrive_as_warp(full);
}

// ---- The warpgroups that multiply

// The pixels of a warpgroup's tile whose sums a thread has. In float32 and NCHW, they are neighbours, in an
// order in which reading elements of windows has no bank conflicts.
constexpr bool NEIGHBOURS = !NHWC && !DIRECT;

__device__ __forceinline__ int pixel_of(int i) {
  int thread = threadIdx.x, warp = thread / 32 % 4, group = thread % 32 / 4;
  if (!NEIGHBOURS) return thread / 128 * 64 + warp * 16 + i * 8 + group;
  int piece = group / 2 % 2 * 4 + group / 4 * 2 + warp % 2;
  return thread / 128 * 64 + warp / 2 * LINE + piece * 4 + group % 2 * 2 + i;
}

// Wait for all instructions but those of the latest `OTHERS` steps.
template <int OTHERS>
__device__ __forceinline__ void finish(float (&sums)[TILE_C / 2]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(OTHERS) : "memory");
#pragma unroll
  for (int j = 0; j < TILE_C / 2; ++j) asm volatile("" : "+f"(sums[j]) :: "memory");
}

constexpr unsigned NEXT = 32 / DESCRIBED_BYTES;  // to what the next instruction takes of a line

#if DIRECT
// Begin to add a product, or to set the sums to it.
__device__ __forceinline__ void multiply_add(float (&sums)[TILE_C / 2], unsigned long long pixels,
                                             unsigned long long weights, int add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, " ADD_PLACE ", 0;\n"
      MULTIPLY_ADD " {" SUMS_PLACES "}, " FIRST_PLACES ", " SECOND_PLACE ", add, 1, 1" LAST_OPERANDS
      ";\n"
      "}"
      : SUMS_OPERANDS
      : "l"(pixels), "l"(weights), "r"(add));
}

// Begin to add the products of a step.
__device__ __forceinline__ void multiply(float (&sums)[TILE_C / 2], const Stage& stage, bool first) {
  constexpr unsigned NEXT_PIXELS = NHWC ? NEXT : DEPTH * 128 / DESCRIBED_BYTES;
  const Element* own = stage.pixels + own_warpgroup() * 64 * LINE;
  unsigned long long pixels = described(own, LINE * 128, 1024);
  unsigned long long weights = described(stage.weights, 0, 1024);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    multiply_add(sums, pixels + i * NEXT_PIXELS, weights + i * NEXT, i > 0 || !first);
  }
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Add the products of `steps` steps.
__device__ __forceinline__ void multiply(Sums& sums, Element* stages, Ring& ring, Barrier* full,
                                         Barrier* empty, int steps) {
  int before = 0;  // the stage of the step before
  for (int step = 0; step < steps; ++step) {
    wait(full[ring.stage], ring.parity);
    multiply(sums.of, stage_at(stages, ring.stage), step == 0);
    finish<1>(sums.of);
    if (step > 0) arrive_as_warp(empty[before]);
    before = ring.stage;
    ring.advance();
  }
  finish<0>(sums.of);
  arrive_as_warp(empty[before]);
}
#else
// Elements of the windows of 64 pixels, as an instruction takes them from the registers of a thread.
struct Rows {
  unsigned of[4];
};

__device__ __forceinline__ Rows rows_at(const Element* pixels, int k) {
  Rows rows;
#if NHWC
  // Each thread gives the address of a piece: of eight lines, in four matrices.
  int lane = threadIdx.x % 32, pixel = threadIdx.x / 32 * 16 + lane % 16;
  const Element* piece = pixels + place_in(pixel, k + lane / 16 * PIECE);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(rows.of[0]), "=r"(rows.of[1]), "=r"(rows.of[2]), "=r"(rows.of[3])
               : "r"(shared_address(piece))
               : "memory");
#else
  int pixel = pixel_of(0);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    int line = k + i * 4 + threadIdx.x % 4;
    uint2 both = *reinterpret_cast<const uint2*>(pixels + pixel / LINE * LINE * LINE +
                                                 place_in(line, pixel % LINE));
    rows.of[2 * i] = both.x;
    rows.of[2 * i + 1] = both.y;
  }
#endif
  return rows;
}

struct Step {
  Rows rows[COUNT];
};

__device__ __forceinline__ Step step_at(const Element* pixels) {
  Step step;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) step.rows[i] = rows_at(pixels, i * DEPTH);
  return step;
}

__device__ __forceinline__ Rows rest_of(const Rows& rows) {
  Rows rest;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    rest.of[i] = __float_as_uint(rest_of(__uint_as_float(rows.of[i])));
  }
  return rest;
}

// Begin to add a product, or to set the sums to it.
__device__ __forceinline__ void multiply_add(float (&sums)[TILE_C / 2], const Rows& rows,
                                             unsigned long long weights, int add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, " ADD_PLACE ", 0;\n"
      MULTIPLY_ADD " {" SUMS_PLACES "}, " FIRST_PLACES ", " SECOND_PLACE ", add, 1, 1" LAST_OPERANDS
      ";\n"
      "}"
      : SUMS_OPERANDS
      : "r"(rows.of[0]), "r"(rows.of[1]), "r"(rows.of[2]), "r"(rows.of[3]), "l"(weights), "r"(add));
}

// Begin to add the products of a step; those of smaller parts first.
__device__ __forceinline__ void multiply(float (&sums)[TILE_C / 2], const Step& step,
                                         const Stage& stage, bool first) {
  unsigned long long weights = described(stage.weights, 0, 1024);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#if SPLIT
  unsigned long long rest_of_weights = described(stage.rest_of_weights, 0, 1024);
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    multiply_add(sums, rest_of(step.rows[i]), weights + i * NEXT, i > 0);
    multiply_add(sums, step.rows[i], rest_of_weights + i * NEXT, 1);
  }
#endif
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    multiply_add(sums, step.rows[i], weights + i * NEXT, SPLIT || i > 0 || !first);
  }
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Add the products of `steps` steps. Elements of the next step are read while this one is multiplied.
__device__ __forceinline__ void multiply(Sums& sums, Element* stages, Ring& ring, Barrier* full,
                                         Barrier* empty, int steps) {
#if SPLIT
  sums = {};
#endif
  wait(full[ring.stage], ring.parity);
  Step now = step_at(stage_at(stages, ring.stage).pixels);
  for (int step = 0; step < steps; ++step) {
#if SPLIT
    float part[TILE_C / 2];
#else
    float (&part)[TILE_C / 2] = sums.of;
#endif
    int before = ring.stage;
    multiply(part, now, stage_at(stages, before), step == 0);
    ring.advance();
    Step next;
    if (step + 1 < steps) {
      wait(full[ring.stage], ring.parity);
      next = step_at(stage_at(stages, ring.stage).pixels);
    }
    finish<0>(part);
    arrive_as_warp(empty[before]);
#if SPLIT
#pragma unroll
    for (int j = 0; j < TILE_C / 2; ++j) sums.of[j] += part[j];
#endif
    now = next;
  }
}
#endif

// Store a thread's sums of eight channels of a tile.
__device__ __forceinline__ void store_eight(const Outputs& outputs, const Tile& tile, int j,
                                            const Element* bias, const float* four) {
  float sums[2][2] = {{four[0], four[1]}, {four[2], four[3]}};
  store<NEIGHBOURS>(outputs, tile, 8 * j + threadIdx.x % 4 * 2, bias, sums);
}

#if SPLITS > 1
__device__ __forceinline__ float4 read_from(const float4* place, int rank) {
  float4 four;
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n"
      "}"
      : "=f"(four.x), "=f"(four.y), "=f"(four.z), "=f"(four.w)
      : "r"(shared_address(place)), "r"(rank)
      : "memory");
  return four;
}

// Add the sums of all blocks of the cluster, each for its part of the channels, and store them.
__device__ __forceinline__ void store_shared(const Outputs& outputs, const Tile& tile,
                                             const Element* bias, const Sums& sums, float4* memory,
                                             int rank) {
  constexpr int ALL = 128 * CONSUMERS;
  asm volatile("bar.sync 2, %0;" :: "n"(ALL) : "memory");  // all have read the last stages
#pragma unroll
  for (int j = 0; j < TILE_C / 8; ++j) {
    const float* four = &sums.of[4 * j];
    memory[j * ALL + threadIdx.x] = make_float4(four[0], four[1], four[2], four[3]);
  }
  meet();
  for (int j = rank; j < TILE_C / 8; j += SPLITS) {
    float total[4] = {};
#pragma unroll
    for (int other = 0; other < SPLITS; ++other) {
      float4 part = read_from(memory + j * ALL + threadIdx.x, other);
      total[0] += part.x;
      total[1] += part.y;
      total[2] += part.z;
      total[3] += part.w;
    }
    store_eight(outputs, tile, j, bias, total);
  }
  meet();  // others have read what this block has in shared memory
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
#if CLUSTERED
    __cluster_dims__(SPLITS, 1, 1)
#endif
    implicit(const Element* __restrict__ data, const Element* __restrict__ weight,
#if WITH_BIAS
             const Element* __restrict__ bias,
#endif
             Element* __restrict__ output) {
#if !WITH_BIAS
  const Element* bias = nullptr;
#endif
  extern __shared__ uint4 memory[];
  __shared__ Barrier full[STAGES], empty[STAGES];
  __shared__ Corner corners[TILE_P];
  Element* stages = aligned<Element>(memory);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; ++stage) {
      initialize(full[stage], WARPS);
      initialize(empty[stage], 4 * CONSUMERS);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  meet();

  int warpgroup = own_warpgroup(), thread = threadIdx.x % 128;
  int rank = blockIdx.x % SPLITS, begin = STEPS * rank / SPLITS, end = STEPS * (rank + 1) / SPLITS;
  Ring ring;
  if (warpgroup == CONSUMERS) {
#if REASSIGNED
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(OTHER_REGISTERS));
#endif
    Ring oldest;
    int under_way = 0;
    for (int number = blockIdx.x / SPLITS; number < TILES; number += BLOCKS) {
      Tile tile = tile_at(number);
      meet_copying();  // all have read the corners of the last tile
      for (int i = thread; i < TILE_P; i += 128) {
        corners[i] = corner_of(tile.pixel + i, tile.group);
      }
      meet_copying();
      for (int step = begin; step < end; ++step) {
        wait(empty[ring.stage], ring.parity ^ 1);
        Stage stage = stage_at(stages, ring.stage);
        copy_pixels<WARPS>(stage.pixels, data, corners, step * LINE, thread);
        copy_weights<WARPS>(stage.weights, weight, tile, step * LINE, thread);
        commit();
        ring.advance();
        if (++under_way > AHEAD) {
          wait_for_copies<AHEAD>();
          finish_stage(stage_at(stages, oldest.stage), thread, full[oldest.stage]);
          oldest.advance();
          --under_way;
        }
      }
    }
    wait_for_copies<0>();
    for (; under_way > 0; --under_way) {
      finish_stage(stage_at(stages, oldest.stage), thread, full[oldest.stage]);
      oldest.advance();
    }
    return;
  }

#if REASSIGNED
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(CONSUMER_REGISTERS));
#endif
  for (int number = blockIdx.x / SPLITS; number < TILES; number += BLOCKS) {
    Tile tile = tile_at(number);
    Sums sums;
    multiply(sums, stages, ring, full, empty, end - begin);
    Outputs outputs = outputs_at(output, tile, pixel_of(0), pixel_of(1));
#if SPLITS > 1
    store_shared(outputs, tile, bias, sums, reinterpret_cast<float4*>(stages), rank);
#else
#pragma unroll
    for (int j = 0; j < TILE_C / 8; ++j) store_eight(outputs, tile, j, bias, &sums.of[4 * j]);
#endif
  }
}
