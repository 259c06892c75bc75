// Convolutions on tensor cores by mma.sync (from sm_80 on), in TF32, split into two, or of 16-bit elements.
//
// Besides those of the texts before it, the constants of this text are:
//   WARP_P, WARP_C     pixels and channels of a tile that a warp computes, multiples of 16
//   THREADS            of a block: 32 for each warp
//   STAGES             steps that are in shared memory or on the way there
//   SPLITS             blocks that share the steps of a tile
//   HELD               whether elements are copied through registers: in NCHW, 16-bit ones one by one
//   MULTIPLY_ADD       the instruction, up to its operands: "mma.sync ... .f32.tf32.tf32.f32"
//
// Pixels are the rows of a product whose columns are channels. All threads copy, STAGES - 1 steps ahead, and
// all warps multiply. Blocks that share a tile write their sums to a workspace; implicit_mma_sum adds them,
// always in the same order.
//
// Tensor cores cut off what exceeds their precision: the lower bits of elements, and of sums. In 3xtf32, each
// element is the sum of two rounded ones, as in gemm/mma.cu; they add eight products at a time only, the
// smallest parts first, and these sums are added in float32.

constexpr int WARPS_P = TILE_P / WARP_P, PIECES_P = WARP_P / 16, PIECES_C = WARP_C / 8;
constexpr int PIECES = PIECES_P * PIECES_C;
constexpr int STAGE = P_STAGE + C_STAGE;
static_assert(THREADS == 32 * WARPS_P * (TILE_C / WARP_C) && WARPS == THREADS / 32,
              "warps must fill the tile");
static_assert(SPLITS <= STEPS, "each block has a step of a tile");

__device__ __forceinline__ Stage stage_at(Element* stages, int number) {
  Element* pixels = stages + number * STAGE;
  return {pixels, pixels + P_STAGE, nullptr};
}

// Where this thread is in its warp, and the part of the tile that the warp computes.
struct Lane {
  int number = threadIdx.x % 32;
  int pixel = threadIdx.x / 32 % WARPS_P * WARP_P, channel = threadIdx.x / 32 / WARPS_P * WARP_C;
};

// ---- Copies

// Elements of 16 bits cannot be copied past the registers one by one. A thread keeps those of a step while it
// multiplies, and then writes them to shared memory.
#if HELD
struct Held {
  unsigned short of[ELEMENTS_OF_WARP * PIXELS_OF_LANE];
};

__device__ __forceinline__ void begin_copies(Held& held, const Stage&, const Element* data,
                                             const Corner* corners, int first) {
  const unsigned short* bits = reinterpret_cast<const unsigned short*>(data);
  visit_pixels<ELEMENTS_OF_WARP>(corners, first, threadIdx.x,
                                 [&](int number, int element, bool exists) {
                                   held.of[number] = exists ? __ldg(bits + element) : 0;
                                 });
}

__device__ __forceinline__ void end_copies(const Held& held, const Stage& stage) {
#pragma unroll
  for (int i = 0; i < ELEMENTS_OF_WARP * PIXELS_OF_LANE; ++i) {
    Element* to = stage.pixels + place_of_copy(i, threadIdx.x);
    *reinterpret_cast<unsigned short*>(to) = held.of[i];
  }
}
#else
struct Held {};

__device__ __forceinline__ void begin_copies(Held&, const Stage& stage, const Element* data,
                                             const Corner* corners, int first) {
  copy_pixels(stage.pixels, data, corners, first, threadIdx.x);
}

__device__ __forceinline__ void end_copies(const Held&, const Stage&) {}
#endif

// ---- Products

struct Sums {
  float of[PIECES_P][PIECES_C][4];
};

// Elements of eight channels for one instruction, as registers of a thread.
struct Columns {
  unsigned of[2];
};

// Elements of 16 pixels, from `pixel` of the tile on, for an instruction of this number in its step.
__device__ __forceinline__ Rows read_rows(const Element* pixels, int pixel, int number) {
  int lane = threadIdx.x % 32;
  Rows rows;
#if NHWC
  int column = number * 2 * PIECE + lane / 16 * PIECE;
  read_matrices(rows.of, pixels + place_in(pixel + lane % 16, column));
#elif HALVES
  int k = number * 16 + lane % 8 + lane / 16 * 8;
  read_transposed(rows.of, pixels + place_of(k, pixel + lane / 8 % 2 * 8));
#else
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    int k = number * 8 + lane % 4 + i / 2 * 4;
    rows.of[i] = __float_as_uint(pixels[place_of(k, pixel + lane / 4 + i % 2 * 8)]);
  }
#endif
  return rows;
}

// Elements of 16 channels, from `channel` of the tile on.
__device__ __forceinline__ void read_columns(Columns& left, Columns& right, const Element* weights,
                                             int channel, int number) {
  int lane = threadIdx.x % 32, column = number * 2 * PIECE + lane / 8 % 2 * PIECE;
  unsigned four[4];
  read_matrices(four, weights + place_in(channel + lane % 8 + lane / 16 * 8, column));
  left = {four[0], four[1]};
  right = {four[2], four[3]};
}

__device__ __forceinline__ void multiply_add(float (&sums)[4], const Rows& rows,
                                             const Columns& columns) {
  asm(MULTIPLY_ADD " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(rows.of[0]), "r"(rows.of[1]), "r"(rows.of[2]), "r"(rows.of[3]), "r"(columns.of[0]),
        "r"(columns.of[1]));
}

#if SPLIT
// Round an operand to TF32, and return what is lost. Half of the last place is added; tensor cores ignore all
// bits after it. What is lost is not rounded: so it stays NaN where the operand is.
template <class Operand>
__device__ __forceinline__ Operand split(Operand& x) {
  Operand rest;
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(x.of) / sizeof(x.of[0])); ++i) {
    float whole = __uint_as_float(x.of[i]);
    x.of[i] += 0x1000;
    rest.of[i] = __float_as_uint(whole - __uint_as_float(x.of[i] & 0xFFFFE000));
  }
  return rest;
}
#endif

// Add the products of 16 pixels and all channels of a warp.
__device__ __forceinline__ void multiply_add(float (&sums)[PIECES_C][4], const Rows& rows,
                                             const Columns (&columns)[PIECES_C]) {
#pragma unroll
  for (int j = 0; j < PIECES_C; ++j) multiply_add(sums[j], rows, columns[j]);
}

// Add the products of a step.
__device__ __forceinline__ void multiply(Sums& sums, const Stage& stage, const Lane& lane) {
#pragma unroll
  for (int number = 0; number < COUNT; ++number) {
    Rows rows[PIECES_P];
    Columns columns[PIECES_C];
#pragma unroll
    for (int i = 0; i < PIECES_P; ++i) {
      rows[i] = read_rows(stage.pixels, lane.pixel + 16 * i, number);
    }
#pragma unroll
    for (int j = 0; j < PIECES_C; j += 2) {
      read_columns(columns[j], columns[j + 1], stage.weights, lane.channel + 8 * j, number);
    }
#if SPLIT
    Columns rest[PIECES_C];
#pragma unroll
    for (int j = 0; j < PIECES_C; ++j) rest[j] = split(columns[j]);
#pragma unroll
    for (int i = 0; i < PIECES_P; ++i) {
      Rows rest_of_rows = split(rows[i]);
      float part[PIECES_C][4] = {};
      multiply_add(part, rest_of_rows, columns);
      multiply_add(part, rows[i], rest);
      multiply_add(part, rows[i], columns);
#pragma unroll
      for (int j = 0; j < PIECES_C; ++j) {
#pragma unroll
        for (int l = 0; l < 4; ++l) sums.of[i][j][l] += part[j][l];
      }
    }
#else
#pragma unroll
    for (int i = 0; i < PIECES_P; ++i) multiply_add(sums.of[i], rows[i], columns);
#endif
  }
}

// ---- The output

// Where a thread's pixels in a piece of 16 are in the output: of each channel of a tile, it has two.
__device__ __forceinline__ Outputs outputs_of(Element* output, const Tile& tile, const Lane& lane,
                                              int piece) {
  int pixel = lane.pixel + 16 * piece + lane.number / 4;
  return outputs_at(output, tile, pixel, pixel + 8);
}

// Store a thread's sums of a piece of eight channels.
__device__ __forceinline__ void store_piece(const Outputs& outputs, const Tile& tile,
                                            const Lane& lane, int piece, const Element* bias,
                                            const float* four) {
  float sums[2][2] = {{four[0], four[1]}, {four[2], four[3]}};
  store(outputs, tile, lane.channel + 8 * piece + lane.number % 4 * 2, bias, sums);
}

// Shared memory of this block is free.
__device__ __forceinline__ void store_all(Element* output, const Tile& tile, const Lane& lane,
                                          const Element* bias, const Sums& sums, Element* memory) {
  static_assert(THREADS / 32 * COLLECTED_LENGTH <= STAGES * STAGE, "there must be room to collect");
  Element* collected = memory + threadIdx.x / 32 * COLLECTED_LENGTH;
#pragma unroll
  for (int i = 0; i < PIECES_P; ++i) {
    if constexpr (COLLECTED) {
      constexpr int EIGHTS = PIECES_C % 4 == 0 ? 4 : PIECES_C % 2 == 0 ? 2 : 1;
#pragma unroll
      for (int j = 0; j < PIECES_C; j += EIGHTS) {
        store_collected<EIGHTS>(collected, output, tile, lane.pixel + 16 * i, lane.channel + 8 * j, bias,
                                sums.of[i][j]);
      }
      continue;
    }
    Outputs outputs = outputs_of(output, tile, lane, i);
#if OUT_NHWC && HALVES
    if constexpr (IN_PIECES && WARP_C % 32 == 0) {
#pragma unroll
      for (int j = 0; j < PIECES_C; j += 4) {
        store_pieces<4>(outputs, tile, lane.channel + 8 * j, bias, sums.of[i][j]);
      }
      continue;
    }
#endif
#pragma unroll
    for (int j = 0; j < PIECES_C; ++j) {
      store_piece(outputs, tile, lane, j, bias, sums.of[i][j]);
    }
  }
}

// Where the sums of a piece of a tile are in the workspace, of one of the blocks that share it.
__device__ __forceinline__ float4* part_of(float* parts, int tile, int rank, int piece) {
  return reinterpret_cast<float4*>(parts) +
         ((static_cast<long long>(tile) * SPLITS + rank) * PIECES + piece) * THREADS + threadIdx.x;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    implicit_mma(const Element* __restrict__ data, const Element* __restrict__ weight,
#if SPLITS > 1
                 float* __restrict__ parts
#else
#if WITH_BIAS
                 const Element* __restrict__ bias,
#endif
                 Element* __restrict__ output
#endif
    ) {
  extern __shared__ uint4 memory[];
  __shared__ Corner corners[TILE_P];
  Element* stages = reinterpret_cast<Element*>(memory);
  int number = blockIdx.x / SPLITS, rank = blockIdx.x % SPLITS;
  int begin = STEPS * rank / SPLITS, end = STEPS * (rank + 1) / SPLITS;
  Tile tile = tile_at(number);
  for (int i = threadIdx.x; i < TILE_P; i += THREADS) corners[i] = corner_of(tile, i);
  __syncthreads();

  Held held;
#pragma unroll
  for (int ahead = 0; ahead < STAGES - 1; ++ahead) {
    if (begin + ahead < end) {
      Stage stage = stage_at(stages, ahead);
      begin_copies(held, stage, data, corners, (begin + ahead) * LINE);
      copy_weights(stage.weights, weight, tile, (begin + ahead) * LINE, threadIdx.x);
      end_copies(held, stage);
    }
    commit();
  }
  Lane lane;
  Sums sums = {};
  int taken = 0, filled = STAGES - 1;
#pragma unroll 1  // two steps at a time would take too many registers
  for (int step = begin; step < end; ++step) {
    wait_for_copies<STAGES - 2>();
    __syncthreads();  // all have copied this step, and have read the one before
    int next = step + STAGES - 1;
    Stage to = stage_at(stages, filled);
    if (next < end) {
      begin_copies(held, to, data, corners, next * LINE);
      copy_weights(to.weights, weight, tile, next * LINE, threadIdx.x);
    }
    commit();
    multiply(sums, stage_at(stages, taken), lane);
    if (next < end) end_copies(held, to);
    taken = taken + 1 == STAGES ? 0 : taken + 1;
    filled = filled + 1 == STAGES ? 0 : filled + 1;
  }
#if SPLITS > 1
#pragma unroll
  for (int i = 0; i < PIECES; ++i) {
    const float* four = sums.of[i / PIECES_C][i % PIECES_C];
    *part_of(parts, number, rank, i) = make_float4(four[0], four[1], four[2], four[3]);
  }
#else
#if !WITH_BIAS
  const Element* bias = nullptr;
#endif
  if (COLLECTED) __syncthreads();  // all have read the last stages
  store_all(output, tile, lane, bias, sums, stages);
#endif
}

#if SPLITS > 1
// Add what all blocks have of a piece of a tile, in a block that has the threads of each of them.
extern "C" __global__ void __launch_bounds__(THREADS)
    implicit_mma_sum(float* __restrict__ parts,
#if WITH_BIAS
                     const Element* __restrict__ bias,
#endif
                     Element* __restrict__ output) {
#if !WITH_BIAS
  const Element* bias = nullptr;
#endif
  int piece = blockIdx.y;
  float total[4] = {};
#pragma unroll
  for (int rank = 0; rank < SPLITS; ++rank) {
    float4 part = *part_of(parts, blockIdx.x, rank, piece);
    total[0] += part.x;
    total[1] += part.y;
    total[2] += part.z;
    total[3] += part.w;
  }
  Tile tile = tile_at(blockIdx.x);
  Lane lane;
  store_piece(outputs_of(output, tile, lane, piece / PIECES_C), tile, lane, piece % PIECES_C, bias,
              total);
}
#endif
