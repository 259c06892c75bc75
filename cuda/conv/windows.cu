// A convolution as a product: pixels of the output by channels of the output, the sum over a window.
//
// Each element of the output is a sum of K products, as long as a row of the weights as they are stored.
// No matrix of windows is made: what a step of such a product needs is copied to shared memory from
// wherever it is in the input. What lies in the padding becomes 0.
//
// A kernel for Hopper consists of its constants, barriers.cu, this text, the texts that copy (lines.cu, described.cu and
// boxed.cu; lines.cu, described.cu, gathered.cu and copying.cu; or blocked.cu and copying.cu), and implicit.cu; one
// for other cards of its constants, this text, lines.cu, gathered.cu, and implicit_mma.cu. Constants of this text are:
//   Element            type of the tensors' elements; HALVES: whether they have 16 bits
//   NHWC, OUT_NHWC     whether channels are the inner dimension of the input and the weights, instead of
//                      columns, and of the output
//   IMAGES, H, W, CI, CO, KH, KW, STRIDE, PADDING, DILATION, OH, OW   sizes of the convolution
//   X_STRIDE, X_PADDING, X_DILATION   stride, padding and dilation along rows. What pack.cu has packed has other sizes,
//                      strides, padding and dilation than the convolution, and windows that were unrolled have one tap
//   SUM_LENGTH         products of a sum, without those that packing adds
//   GROUPS, GROUP_IN, GROUP_OUT   groups, and the channels of the input and of the output in each
//   WITH_BIAS, WITH_RELU   whether a bias is added to each channel, and whether negative results become 0
//   TILE_P, TILE_C     pixels and channels of the output that a block computes at a time
//   DIVIDED            pixels that are divided into tiles: all, those of an image, or a row of the output
//   SPLIT              whether elements are split (3xtf32), as in gemm/mma.cu
//   WARPS              warps of a block that copy
//   STAGES             on Hopper, steps in shared memory; WEIGHTS_STAY: whether each has the same weights in all tiles

constexpr int TAPS = KH * KW, K = GROUP_IN * TAPS;
constexpr int PLANE = OH * OW, PIXELS = IMAGES * PLANE;
constexpr int TILES_P = (DIVIDED + TILE_P - 1) / TILE_P, TILES_C = (GROUP_OUT + TILE_C - 1) / TILE_C;
constexpr int TILES = PIXELS / DIVIDED * TILES_P * TILES_C * GROUPS;
constexpr bool ALL_P = DIVIDED % TILE_P == 0, ALL_C = GROUP_OUT % TILE_C == 0;

// The first pixel of a tile and the one where pixels end, its group, and its first channel. Tiles of the
// same pixels follow one another.
struct Tile {
  int pixel, end, group, channel;
};

__device__ __forceinline__ Tile tile_at(int number) {
  int within = number % (TILES_C * GROUPS), across = number / (TILES_C * GROUPS);
  int begin = across / TILES_P * DIVIDED;
  return {begin + across % TILES_P * TILE_P, begin + DIVIDED, within / TILES_C,
          within % TILES_C * TILE_C};
}

// Where the window of a pixel begins, which may be in the padding.
struct Origin {
  int image, y, x;
};

__device__ __forceinline__ Origin origin_of(int pixel) {
  return {pixel / PLANE, pixel % PLANE / OW * STRIDE - PADDING, pixel % OW * X_STRIDE - X_PADDING};
}

// Elements of 64 pixels for one instruction, as it takes them from the registers of a thread.
struct Rows {
  unsigned of[4];
};

// What is in shared memory for one step; the smaller parts of weights only if they are split.
struct Stage {
  Element *pixels, *weights, *rest_of_weights;
};

__device__ Stage stage_at(Element* stages, int number);  // see implicit.cu

#ifdef WEIGHTS_STAY
// Whether a step of a block, of which so many came before, needs other weights than its stage has.
__device__ __forceinline__ bool has_new_weights(int before) {
  return !WEIGHTS_STAY || before < STAGES;
}
#endif

// ---- Split elements

// Whether sums have so few products that the bound of float32 allows no more than each product's own
// rounding: then the product of both smaller parts counts, and smaller parts are rounded, not cut off.
constexpr bool SHORT_SUMS = SUM_LENGTH < 32;

// What is lost when the bits are ignored that TF32 does not have.
__device__ __forceinline__ float rest_of(float x) {
  float rest = x - __uint_as_float(__float_as_uint(x) & 0xFFFFE000);
  return SHORT_SUMS ? __uint_as_float(__float_as_uint(rest) + 0x1000) : rest;
}

// Where a piece of four elements is, in pieces: LENGTH elements follow each other, then others after DISTANCE.
template <int LENGTH, int DISTANCE>
__device__ __forceinline__ int place_of_piece(int piece) {
  return piece / (LENGTH / 4) * (DISTANCE / 4) + piece % (LENGTH / 4);
}

// Write the smaller parts of RUNS runs of elements, of which LENGTH follow each other, by THREADS_OF_ALL threads. Each
// reads several pieces before it writes one: the compiler would not read after a write, which may be to the same place.
template <int RUNS, int LENGTH, int DISTANCE, int THREADS_OF_ALL>
__device__ __forceinline__ void write_rest(float* rest, const float* elements, int thread) {
  constexpr int PIECES = RUNS * LENGTH / 4, AT_ONCE = 8;
#pragma unroll
  for (int begin = 0; begin < PIECES; begin += AT_ONCE * THREADS_OF_ALL) {
    float4 fours[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      int piece = begin + i * THREADS_OF_ALL + thread;
      if (piece < PIECES) fours[i] = reinterpret_cast<const float4*>(elements)[place_of_piece<LENGTH, DISTANCE>(piece)];
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      int piece = begin + i * THREADS_OF_ALL + thread;
      float4 four = fours[i];
      if (piece < PIECES) {
        reinterpret_cast<float4*>(rest)[place_of_piece<LENGTH, DISTANCE>(piece)] = {rest_of(four.x), rest_of(four.y),
                                                                                  rest_of(four.z), rest_of(four.w)};
      }
    }
  }
}

// ---- Copies

// Copy so many elements past the registers, or set them to 0.
template <int COUNT>
__device__ __forceinline__ void copy_piece(Element* to, const Element* from, bool exists) {
  constexpr int BYTES = COUNT * sizeof(Element);
  unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  if constexpr (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(address), "l"(from), "r"(exists ? 16 : 0) : "memory");
  } else if constexpr (BYTES >= 4) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                 :: "r"(address), "l"(from), "n"(BYTES), "r"(exists ? BYTES : 0) : "memory");
  } else {
    // Loads that nothing before them can change may be moved in front of stores, so that several are under way.
    unsigned short bits = exists ? __ldg(reinterpret_cast<const unsigned short*>(from)) : 0;
    *reinterpret_cast<unsigned short*>(to) = bits;
  }
}

__device__ __forceinline__ void commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Wait until all copies of this thread have ended but those of the latest `OTHERS` groups.
template <int OTHERS>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" :: "n"(OTHERS) : "memory");
}

__device__ __forceinline__ void meet_copying() {
  asm volatile("bar.sync 1, %0;" :: "n"(32 * WARPS) : "memory");
}

__device__ constexpr int common_divisor(int a, int b) { return b ? common_divisor(b, a % b) : a; }

// ---- The output

// Whether each two neighbouring channels begin at a multiple of two elements, in NHWC.
constexpr bool IN_PAIRS = CO % 2 == 0 && GROUP_OUT % 2 == 0;

// Where two pixels are in the output, in the first channel of a tile, and whether they exist.
struct Outputs {
  Element* of[2];
  bool exist[2] = {};
};

__device__ __forceinline__ Outputs outputs_at(Element* output, const Tile& tile, int first,
                                              int second) {
  Outputs outputs;
  int channel = tile.group * GROUP_OUT + tile.channel, pixels[2] = {first, second};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    int pixel = tile.pixel + pixels[i];
    outputs.exist[i] = ALL_P || pixel < tile.end;
    outputs.of[i] = OUT_NHWC ? output + pixel * CO + channel
                         : output + (pixel / PLANE * CO + channel) * PLANE + pixel % PLANE;
  }
  return outputs;
}

template <int BYTES>
struct Both;
template <>
struct Both<4> {
  using Type = unsigned;
};
template <>
struct Both<8> {
  using Type = uint2;
};

// Store neighbours, which begin at a multiple of two elements.
__device__ __forceinline__ void store_both(Element* to, float first, float second) {
  using Type = typename Both<2 * sizeof(Element)>::Type;
  alignas(sizeof(Type)) Element both[2] = {Element(first), Element(second)};
  *reinterpret_cast<Type*>(to) = *reinterpret_cast<const Type*>(both);
}

__device__ __forceinline__ float finished(float sum, float bias) {
  float result = sum + bias;
  return WITH_RELU && result < 0.0f ? 0.0f : result;
}

// Store the sums of two channels, from `channel` of the tile on, of each of two pixels.
__device__ __forceinline__ void store(const Outputs& outputs, const Tile& tile, int channel,
                                      const Element* bias, const float (&sums)[2][2]) {
  int left = GROUP_OUT - tile.channel - channel;  // channels that exist
  bool has[2] = {ALL_C || left > 0, ALL_C || left > 1};
  float biases[2] = {};
#if WITH_BIAS
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    int at = tile.group * GROUP_OUT + tile.channel + channel + j;
    if (has[j]) biases[j] = static_cast<float>(bias[at]);
  }
#endif
  if (OUT_NHWC && IN_PAIRS) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (outputs.exist[i] && has[0]) {
        store_both(outputs.of[i] + channel, finished(sums[i][0], biases[0]),
                   finished(sums[i][1], biases[1]));
      }
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    int at = (channel + j) * (OUT_NHWC ? 1 : PLANE);
    if (!has[j]) continue;
    float first = finished(sums[0][j], biases[j]), second = finished(sums[1][j], biases[j]);
    if (outputs.exist[0]) outputs.of[0][at] = Element(first);
    if (outputs.exist[1]) outputs.of[1][at] = Element(second);
  }
}

// Whether channels are stored in pieces of 16 bytes, up to 32 at once.
constexpr bool IN_PIECES = OUT_NHWC && HALVES && CO % 8 == 0 && GROUP_OUT % 8 == 0;

// Whether a pixel's channels begin within a sector of the output. Four threads would then store their channels to parts
// of two sectors. Instead, a warp collects 32 channels of eight pixels in shared memory, and stores them pixel by pixel.
constexpr bool COLLECTED = OUT_NHWC && (CO % 8 != 0 || GROUP_OUT % 8 != 0);
constexpr int COLLECTED_PIXELS = 8, COLLECTED_ROW = 40;  // of 32 channels; threads then write to different banks
constexpr int COLLECTED_LENGTH = COLLECTED ? COLLECTED_PIXELS * COLLECTED_ROW : 0;  // elements of a warp

// Store a warp's sums of so many times eight channels, at most four, of 16 pixels. They begin at a pixel and a
// channel of the tile. `collected`: COLLECTED_LENGTH elements of shared memory that only this warp uses.
template <int EIGHTS>
__device__ __forceinline__ void store_collected(Element* collected, Element* output, const Tile& tile,
                                                int pixel, int channel, const Element* bias,
                                                const float* sums) {
  constexpr int WIDTH = IN_PAIRS ? 2 : 1, LANES = 32 / WIDTH;  // elements of a store, and lanes that store a pixel
  int lane = threadIdx.x % 32;
  int left = GROUP_OUT - tile.channel - channel;  // channels that exist
  int first = tile.group * GROUP_OUT + tile.channel + channel;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < EIGHTS; ++j) {
      int own = 8 * j + lane % 4 * 2;
      float biases[2] = {};
#if WITH_BIAS
      if (ALL_C || own < left) biases[0] = static_cast<float>(bias[first + own]);
      if (ALL_C || own + 1 < left) biases[1] = static_cast<float>(bias[first + own + 1]);
#endif
      store_both(collected + lane / 4 * COLLECTED_ROW + own, finished(sums[4 * j + 2 * i], biases[0]),
                 finished(sums[4 * j + 2 * i + 1], biases[1]));
    }
    __syncwarp();
    int own = lane % LANES * WIDTH;
    bool has = own < 8 * EIGHTS && (ALL_C || own < left);
    if (own >= 8 * EIGHTS) own = 0;  // which is there, so that all can be read before one is stored
    alignas(2 * sizeof(Element)) Element read[COLLECTED_PIXELS / WIDTH][WIDTH];
#pragma unroll
    for (int j = 0; j < COLLECTED_PIXELS / WIDTH; ++j) {
      const Element* from = collected + (j * WIDTH + lane / LANES) * COLLECTED_ROW + own;
#pragma unroll
      for (int k = 0; k < WIDTH; ++k) read[j][k] = from[k];
    }
#pragma unroll
    for (int j = 0; j < COLLECTED_PIXELS / WIDTH; ++j) {
      int at = tile.pixel + pixel + COLLECTED_PIXELS * i + j * WIDTH + lane / LANES;
      if (!has || !(ALL_P || at < tile.end)) continue;
      Element* to = output + at * CO + first + own;
      if constexpr (WIDTH == 2) {
        using Type = typename Both<2 * sizeof(Element)>::Type;
        *reinterpret_cast<Type*>(to) = *reinterpret_cast<const Type*>(read[j]);
      } else {
        *to = read[j][0];
      }
    }
    __syncwarp();  // all have read what the next ones overwrite
  }
}

#if OUT_NHWC && HALVES

// Exchange a pair with another lane of each four: the first of both, or the second.
__device__ __forceinline__ void exchange(unsigned& first, unsigned& second, int other) {
  bool upper = threadIdx.x & other;
  unsigned got = __shfl_xor_sync(~0u, upper ? first : second, other);
  (upper ? first : second) = got;
}

// Store the sums of so many times eight channels, at most four, from `channel` of the tile on: of each eight channels,
// four lanes have two each. They exchange them, so that each has all of eight.
template <int EIGHTS>
__device__ __forceinline__ void store_pieces(const Outputs& outputs, const Tile& tile, int channel,
                                             const Element* bias, const float* sums) {
  int lane = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    unsigned pieces[4] = {};
#pragma unroll
    for (int j = 0; j < EIGHTS; ++j) {
      int own = channel + 8 * j + 2 * lane, at = tile.group * GROUP_OUT + tile.channel + own;
      float biases[2] = {};
#if WITH_BIAS
      if (ALL_C || tile.channel + own < GROUP_OUT) {
        biases[0] = static_cast<float>(bias[at]);
        biases[1] = static_cast<float>(bias[at + 1]);
      }
#endif
      alignas(4) Element both[2] = {Element(finished(sums[4 * j + 2 * i], biases[0])),
                                    Element(finished(sums[4 * j + 2 * i + 1], biases[1]))};
      pieces[j] = *reinterpret_cast<const unsigned*>(both);
    }
    exchange(pieces[0], pieces[1], 1);
    exchange(pieces[2], pieces[3], 1);
    exchange(pieces[0], pieces[2], 2);
    exchange(pieces[1], pieces[3], 2);
    int own = channel + 8 * lane;
    if (lane < EIGHTS && outputs.exist[i] && (ALL_C || tile.channel + own < GROUP_OUT)) {
      *reinterpret_cast<uint4*>(outputs.of[i] + own) =
          make_uint4(pieces[0], pieces[1], pieces[2], pieces[3]);
    }
  }
}
#endif
