// Convolutions on the tensor cores of Hopper (sm_90a), in TF32, split into two, or of 16-bit elements.
//
// Besides those of the texts before it, the constants of this text are:
//   BOXED              whether the tensor memory accelerator copies
//   SPLIT_BEFORE       whether a launch before this one has split the weights
//   CONSUMERS          warpgroups that multiply, each for 64 pixels; one more copies
//   THREADS, RESIDENT  of a block, and blocks of a multiprocessor
//   REASSIGNED, OTHER_REGISTERS, CONSUMER_REGISTERS   whether registers of the one that copies are given
//                      to the others, and how many a thread has then
//   STAGES             steps that are in shared memory or on the way there
//   BLOCKS             number of blocks, or of clusters, which compute tiles in turn
//   SPLITS             blocks of a cluster, which share the steps of a tile
//   IN_PLANES          whether a warpgroup collects 32 channels of its 64 pixels in shared memory, and stores them plane by
//                      plane: its warps would store eight pixels of four planes at a time, parts of eight sectors
//   MULTIPLY_ADD       the instruction, up to its operands: "wgmma ... .m64n128k8.f32.tf32.tf32"; if elements are split,
//                      MULTIPLY_ADD_COARSE is that for bfloat16
//   SUMS_PLACES        its TILE_C / 2 sums in PTX, SUMS_OPERANDS in C++
//   DIRECT             whether it takes both operands from shared memory
//   PIXELS_OPERANDS    its first operand in C++, which consists of elements of windows
//   FIRST_PLACES, SECOND_PLACE, ADD_PLACE   its other operands; LAST_OPERANDS: what follows them
//
// Pixels are the rows of a product whose columns are channels. The instruction takes weights from shared
// memory. It takes elements of windows from there, too, unless they are split or, in TF32, have another
// inner dimension than the weights: then they come from registers. The last warpgroup copies both, some
// steps ahead. Barriers in shared memory tell when a stage is full, when the smaller parts of split weights
// are ready (if that is later), and when it is empty again.
//
// Tensor cores cut off what exceeds their precision. In 3xtf32, they add a few products only, and these
// sums are added in float32.

constexpr int STAGE = P_STAGE + (1 + SPLIT) * C_STAGE;
constexpr bool PREPARED = BOXED && SPLIT && !SPLIT_BEFORE;
static_assert(TILE_P == 64 * CONSUMERS && THREADS == 128 * (CONSUMERS + 1), "64 pixels a warpgroup");
static_assert(SPLITS <= STEPS && (SPLITS == 1 || BLOCKS == TILES), "each block has a step of a tile");

__device__ __forceinline__ Stage stage_at(Element* stages, int number) {
  Element* pixels = stages + number * STAGE;
  return {pixels, pixels + P_STAGE, pixels + P_STAGE + C_STAGE};
}

// A thread's sums: in each eight channels, two neighbouring ones of two pixels.
struct Sums {
  float of[TILE_C / 2];
};

struct Barriers {
  Barrier full[STAGES], ready[STAGES], empty[STAGES];
};

__device__ __forceinline__ void wait_until_full(Barriers& barriers, const Ring& ring) {
  wait(barriers.full[ring.stage], ring.parity);
  if (PREPARED) wait(barriers.ready[ring.stage], ring.parity);
}

// Wait for all instructions but those of the latest `OTHERS` steps.
template <int OTHERS>
__device__ __forceinline__ void finish(float (&sums)[TILE_C / 2]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(OTHERS) : "memory");
#pragma unroll
  for (int j = 0; j < TILE_C / 2; ++j) asm volatile("" : "+f"(sums[j]) :: "memory");
}

// Where an instruction takes elements of windows from.
#if DIRECT
using Pixels = unsigned long long;
#else
using Pixels = Rows;
#endif

// Begin to add a product, or to set the sums to it.
__device__ __forceinline__ void multiply_add(float (&sums)[TILE_C / 2], const Pixels& pixels,
                                             unsigned long long weights, int add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, " ADD_PLACE ", 0;\n"
      MULTIPLY_ADD " {" SUMS_PLACES "}, " FIRST_PLACES ", " SECOND_PLACE ", add, 1, 1" LAST_OPERANDS
      ";\n"
      "}"
      : SUMS_OPERANDS
      : PIXELS_OPERANDS, "l"(weights), "r"(add));
}

#if SPLIT
// The same with operands in bfloat16.
__device__ __forceinline__ void multiply_add_coarse(float (&sums)[TILE_C / 2], const Pixels& pixels,
                                                    unsigned long long weights, int add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, " ADD_PLACE ", 0;\n"
      MULTIPLY_ADD_COARSE " {" SUMS_PLACES "}, " FIRST_PLACES ", " SECOND_PLACE ", add, 1, 1, 0;\n"
      "}"
      : SUMS_OPERANDS
      : PIXELS_OPERANDS, "l"(weights), "r"(add));
}
#endif

#if DIRECT
// Begin to add the products of a step.
__device__ __forceinline__ void multiply(float (&sums)[TILE_C / 2], const Stage& stage, bool first) {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    multiply_add(sums, described_pixels(stage.pixels, i), described_weights(stage.weights, i),
                 i > 0 || !first);
  }
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Add the products of steps of a tile.
__device__ __forceinline__ void multiply(Sums& sums, const Tile&, Element* stages, Ring& ring,
                                         Barriers& barriers, int begin, int end) {
  int before = 0;  // the stage of the step before
  for (int step = begin; step < end; ++step) {
    wait_until_full(barriers, ring);
    multiply(sums.of, stage_at(stages, ring.stage), step == begin);
    finish<1>(sums.of);
    if (step > begin) arrive_as_warp(barriers.empty[before]);
    before = ring.stage;
    ring.advance();
  }
  finish<0>(sums.of);
  arrive_as_warp(barriers.empty[before]);
}
#else
__device__ __forceinline__ Rows rest_of(const Rows& rows) {
  Rows rest;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    rest.of[i] = __float_as_uint(rest_of(__uint_as_float(rows.of[i])));
  }
  return rest;
}

// Round elements, and return what an instruction in bfloat16 multiplies: what they have lost, and the elements. A thread
// has elements a and a + 4 of eight of a pixel; these become neighbours.
__device__ __forceinline__ Rows coarse_rest_of(Rows& rows) {
  Rows rest;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float first = __uint_as_float(rows.of[i]), second = __uint_as_float(rows.of[i + 2]);
    float high_first = rounded(first), high_second = rounded(second);
    rest.of[i] = in_bfloat16(first - high_first, second - high_second);
    rest.of[i + 2] = in_bfloat16(first, second);
    rows.of[i] = __float_as_uint(high_first);
    rows.of[i + 2] = __float_as_uint(high_second);
  }
  return rest;
}

// Add the products of a part of a step; those of smaller parts first.
__device__ __forceinline__ void multiply(Sums& sums, const Stage& stage, const Window& window,
                                         int first, bool add) {
  Rows rows[CHUNK];
#pragma unroll
  for (int i = 0; i < CHUNK; ++i) {
    if (first + i < COUNT) rows[i] = rows_at(stage.pixels, window, first + i);
  }
#if SPLIT
  Rows rest[CHUNK];
#pragma unroll
  for (int i = 0; i < CHUNK; ++i) rest[i] = SPLIT_BEFORE ? coarse_rest_of(rows[i]) : rest_of(rows[i]);
  float part[TILE_C / 2];
#else
  float (&part)[TILE_C / 2] = sums.of;
#endif
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#if SPLIT
#pragma unroll
  for (int i = 0; i < CHUNK; ++i) {
    if (first + i >= COUNT) continue;
    if (SPLIT_BEFORE) {
      multiply_add_coarse(part, rest[i], described_weights(stage.rest_of_weights, first + i), i > 0);
      continue;
    }
    if (SHORT_SUMS) {
      multiply_add(part, rest[i], described_weights(stage.rest_of_weights, first + i), i > 0);
    }
    multiply_add(part, rest[i], described_weights(stage.weights, first + i), SHORT_SUMS || i > 0);
    multiply_add(part, rows[i], described_weights(stage.rest_of_weights, first + i), 1);
  }
#endif
#pragma unroll
  for (int i = 0; i < CHUNK; ++i) {
    if (first + i >= COUNT) continue;
    multiply_add(part, rows[i], described_weights(stage.weights, first + i), SPLIT || i > 0 || add);
  }
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  finish<0>(part);
#if SPLIT
#pragma unroll
  for (int j = 0; j < TILE_C / 2; ++j) sums.of[j] += part[j];
#endif
}

// Add the products of steps of a tile.
__device__ __forceinline__ void multiply(Sums& sums, const Tile& tile, Element* stages, Ring& ring,
                                         Barriers& barriers, int begin, int end) {
  Window window = window_of(tile);
#if SPLIT
  sums = {};
#endif
  for (int step = begin; step < end; ++step) {
    wait_until_full(barriers, ring);
    go_to(window, step);
    Stage stage = stage_at(stages, ring.stage);
#pragma unroll
    for (int first = 0; first < COUNT; first += CHUNK) {
      multiply(sums, stage, window, first, SPLIT || first > 0 || step > begin);
    }
    arrive_as_warp(barriers.empty[ring.stage]);
    ring.advance();
  }
}
#endif

// Store a thread's sums of eight channels of a tile.
__device__ __forceinline__ void store_eight(const Outputs& outputs, const Tile& tile, int j,
                                            const Element* bias, const float* four) {
  float sums[2][2] = {{four[0], four[1]}, {four[2], four[3]}};
  store(outputs, tile, 8 * j + threadIdx.x % 4 * 2, bias, sums);
}

constexpr int PLANE_ROW = 68;  // of the pixels of a channel; threads then write to different banks
constexpr int PLANES_LENGTH = IN_PLANES ? 32 * PLANE_ROW : 0;  // elements of a warpgroup

#if IN_PLANES
__device__ __forceinline__ void meet_warpgroup() {
  asm volatile("bar.sync %0, 128;" :: "r"(3 + own_warpgroup()) : "memory");
}

// Where a thread stores two pixels of its warpgroup, in the first channel of a tile, and whether they exist.
__device__ __forceinline__ Outputs planes_at(Element* output, const Tile& tile) {
  int first = 64 * own_warpgroup() + threadIdx.x % 32;
  return outputs_at(output, tile, first, first + 32);
}

// Store a warpgroup's sums of so many times eight channels, at most four, from `channel` of the tile on. `collected`:
// PLANES_LENGTH elements of shared memory that only this warpgroup uses.
template <int EIGHTS>
__device__ __forceinline__ void store_planes(Element* collected, const Outputs& outputs, const Tile& tile,
                                             int channel, const Element* bias, const float* sums) {
  int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32, own = lane % 4 * 2;
  int left = GROUP_OUT - tile.channel - channel;  // channels that exist
  if (WITH_BIAS) bias += tile.group * GROUP_OUT + tile.channel + channel;
#pragma unroll
  for (int j = 0; j < EIGHTS; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      int plane = 8 * j + own + i % 2, pixel = 16 * warp + lane / 4 + i / 2 * 8;
      float of_plane = WITH_BIAS && (ALL_C || plane < left) ? static_cast<float>(bias[plane]) : 0.0f;
      collected[plane * PLANE_ROW + pixel] = Element(finished(sums[4 * j + i], of_plane));
    }
  }
  meet_warpgroup();  // it has collected all
#pragma unroll
  for (int first = 0; first < 8 * EIGHTS; first += 4) {
    int plane = first + warp;
    Element read[2] = {collected[plane * PLANE_ROW + lane], collected[plane * PLANE_ROW + lane + 32]};  // several at once
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (outputs.exist[i] && (ALL_C || plane < left)) outputs.of[i][(channel + plane) * PLANE] = read[i];
    }
  }
  meet_warpgroup();  // it has read what the next sums overwrite
}
#endif

#if SPLITS == 1
__device__ __forceinline__ void store_all(Element* output, const Tile& tile, const Element* bias,
                                          const Sums& sums, Element* collected) {
  if constexpr (COLLECTED) {
    int warp = threadIdx.x / 32;
#pragma unroll
    for (int j = 0; j < TILE_C / 32; ++j) {
      store_collected<4>(collected + warp * COLLECTED_LENGTH, output, tile, 16 * warp, 32 * j, bias,
                         &sums.of[16 * j]);
    }
    if constexpr (TILE_C % 32 != 0) {
      constexpr int DONE = TILE_C / 32 * 32;
      store_collected<TILE_C % 32 / 8>(collected + warp * COLLECTED_LENGTH, output, tile, 16 * warp,
                                       DONE, bias, &sums.of[DONE / 2]);
    }
    return;
  }
#if IN_PLANES
  Outputs planes = planes_at(output, tile);
  collected += own_warpgroup() * PLANES_LENGTH;
#pragma unroll
  for (int j = 0; j < TILE_C / 32; ++j) {
    store_planes<4>(collected, planes, tile, 32 * j, bias, &sums.of[16 * j]);
  }
  if constexpr (TILE_C % 32 != 0) {
    constexpr int DONE = TILE_C / 32 * 32;
    store_planes<TILE_C % 32 / 8>(collected, planes, tile, DONE, bias, &sums.of[DONE / 2]);
  }
#else
  Outputs outputs = outputs_at(output, tile, pixel_of(0), pixel_of(1));
#if OUT_NHWC && HALVES
  if constexpr (IN_PIECES) {
#pragma unroll
    for (int j = 0; j < TILE_C / 32; ++j) store_pieces<4>(outputs, tile, 32 * j, bias, &sums.of[16 * j]);
    if constexpr (TILE_C % 32 != 0) {
      constexpr int DONE = TILE_C / 32 * 32;
      store_pieces<TILE_C % 32 / 8>(outputs, tile, DONE, bias, &sums.of[DONE / 2]);
    }
    return;
  }
#endif
#pragma unroll
  for (int j = 0; j < TILE_C / 8; ++j) store_eight(outputs, tile, j, bias, &sums.of[4 * j]);
#endif
}
#else
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
    implicit(
#if BOXED
        const __grid_constant__ CUtensorMap data, const __grid_constant__ CUtensorMap weight,
#else
        const Element* __restrict__ data, const Element* __restrict__ weight,
#endif
#if WITH_BIAS
        const Element* __restrict__ bias,
#endif
        Element* __restrict__ output) {
#if !WITH_BIAS
  const Element* bias = nullptr;
#endif
  extern __shared__ uint4 memory[];
  __shared__ Barriers barriers;
#if SPLITS == 1
  constexpr int LENGTH_OF_COLLECTED = CONSUMERS * (IN_PLANES ? PLANES_LENGTH : 4 * COLLECTED_LENGTH);
  __shared__ alignas(16) Element collected[LENGTH_OF_COLLECTED ? LENGTH_OF_COLLECTED : 1];
#endif
  Element* stages = aligned<Element>(memory);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; ++stage) {
      initialize(barriers.full[stage], FULL_ARRIVALS);
      initialize(barriers.ready[stage], WARPS - 1);
      initialize(barriers.empty[stage], 4 * CONSUMERS);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  meet();

  int warpgroup = own_warpgroup(), rank = blockIdx.x % SPLITS;
  int begin = STEPS * rank / SPLITS, end = STEPS * (rank + 1) / SPLITS;
  if (warpgroup == CONSUMERS) {
#if REASSIGNED
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(OTHER_REGISTERS));
#endif
    produce(data, weight, stages, barriers.full, barriers.ready, barriers.empty, begin, end);
    return;
  }

#if REASSIGNED
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(CONSUMER_REGISTERS));
#endif
  Ring ring;
  for (int number = blockIdx.x / SPLITS; number < TILES; number += BLOCKS) {
    Tile tile = tile_at(number);
    Sums sums;
    multiply(sums, tile, stages, ring, barriers, begin, end);
#if SPLITS > 1
    Outputs outputs = outputs_at(output, tile, pixel_of(0), pixel_of(1));
    store_shared(outputs, tile, bias, sums, reinterpret_cast<float4*>(stages), rank);
#else
    store_all(output, tile, bias, sums, collected);
#endif
  }
}
