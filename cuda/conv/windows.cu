// A convolution as a product: pixels of the output by channels of the output, the sum over a window.
//
// Each element of the output is a sum of K products, as long as a row of the weights as they are stored.
// No matrix of windows is made: threads copy what a step of such a product needs to shared memory, from
// wherever it is in the input. What lies in the padding becomes 0.
//
// The constants of this text are:
//   Element            type of the tensors' elements; HALVES: whether they have 16 bits
//   NHWC               whether channels are the inner dimension of tensors, instead of columns
//   IMAGES, H, W, CI, CO, KH, KW, STRIDE, PADDING, DILATION, OH, OW   sizes of the convolution
//   GROUPS, GROUP_IN, GROUP_OUT   groups, and the channels of the input and of the output in each
//   WITH_BIAS, WITH_RELU   whether a bias is added to each channel, and whether negative results become 0
//   TILE_P, TILE_C     pixels and channels of the output that a block computes at a time
//   WIDTH, WEIGHT_WIDTH   elements that are copied at once from the input (NHWC) and from the weights
//
// In shared memory, there are lines of 128 bytes, in which pieces of 16 bytes are swizzled so that eight
// lines have no bank conflicts. Lines of the weights have elements of one channel. Lines of the input have
// elements of one pixel (NHWC) or the same element of the windows of several pixels (NCHW).

constexpr int LINE = 128 / sizeof(Element);  // elements of a line, and products of a step
constexpr int PIECE = 16 / sizeof(Element);
constexpr int K = GROUP_IN * KH * KW;
constexpr int STEPS = (K + LINE - 1) / LINE;
constexpr int PLANE = OH * OW, PIXELS = IMAGES * PLANE;
constexpr int TILES_P = (PIXELS + TILE_P - 1) / TILE_P, TILES_C = (GROUP_OUT + TILE_C - 1) / TILE_C;
constexpr int TILES = TILES_P * TILES_C * GROUPS;
constexpr bool ALL_K = K % LINE == 0, ALL_P = PIXELS % TILE_P == 0, ALL_C = GROUP_OUT % TILE_C == 0;
constexpr int P_STAGE = TILE_P * LINE, C_STAGE = TILE_C * LINE;

// The first pixel and channel of a tile, and its group. Tiles of the same pixels follow one another.
struct Tile {
  int pixel, group, channel;
};

__device__ __forceinline__ Tile tile_at(int number) {
  int within = number % (TILES_C * GROUPS);
  return {number / (TILES_C * GROUPS) * TILE_P, within / TILES_C, within % TILES_C * TILE_C};
}

__device__ __forceinline__ int place_in(int line, int column) {
  return line * LINE + ((column / PIECE ^ line % 8) * PIECE | column % PIECE);
}

// ---- Windows

// Where the window of a pixel begins: as an element of the input, and its row and column there.
struct alignas(16) Corner {
  int element, y, x, unused;
};

__device__ __forceinline__ Corner corner_of(int pixel, int group) {
  constexpr int FAR = -(1 << 30);  // no window is there
  if (!ALL_P && pixel >= PIXELS) return {0, FAR, FAR, 0};
  int image = pixel / PLANE, y = pixel % PLANE / OW * STRIDE - PADDING;
  int x = pixel % OW * STRIDE - PADDING;
#if NHWC
  return {((image * H + y) * W + x) * CI + group * GROUP_IN, y, x, 0};
#else
  return {((image * CI + group * GROUP_IN) * H + y) * W + x, y, x, 0};
#endif
}

// The place of an element of a window, from its corner on.
struct Tap {
  int element, y, x;
};

__device__ __forceinline__ Tap tap_at(int k) {
  int channel = NHWC ? k % GROUP_IN : k / (KH * KW), place = NHWC ? k / GROUP_IN : k % (KH * KW);
  int y = place / KW * DILATION, x = place % KW * DILATION;
  return {NHWC ? (y * W + x) * CI + channel : (channel * H + y) * W + x, y, x};
}

// The place of the next element in an input of the layout NCHW.
__device__ __forceinline__ void advance(Tap& tap) {
  tap.element += DILATION;
  tap.x += DILATION;
  if (tap.x == KW * DILATION) {
    tap.element += DILATION * (W - KW);
    tap.x = 0;
    tap.y += DILATION;
    if (tap.y == KH * DILATION) {
      tap.element += W * (H - KH * DILATION);
      tap.y = 0;
    }
  }
}

__device__ __forceinline__ bool is_inside(const Corner& corner, const Tap& tap) {
  if (PADDING == 0) return ALL_P || corner.y >= 0;
  return static_cast<unsigned>(corner.y + tap.y) < H && static_cast<unsigned>(corner.x + tap.x) < W;
}

// ---- Copies by the threads of `WARPS` warps

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
    *to = exists ? *from : Element(0.0f);
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

__device__ constexpr int common_divisor(int a, int b) { return b ? common_divisor(b, a % b) : a; }

#if NHWC
// Copy lines of pixels: elements `first` and the following ones of their windows.
template <int WARPS>
__device__ __forceinline__ void copy_pixels(Element* stage, const Element* data,
                                            const Corner* corners, int first, int thread) {
  constexpr int ALONG = LINE / WIDTH, DOWN = 32 * WARPS / ALONG;
  int column = thread % ALONG * WIDTH, line = thread / ALONG;
  Tap tap = tap_at(first + column);
  bool any = ALL_K || first + column < K;
#pragma unroll
  for (int down = 0; down < TILE_P; down += DOWN) {
    if (TILE_P % DOWN != 0 && line + down >= TILE_P) continue;
    Corner corner = corners[line + down];
    bool exists = any && is_inside(corner, tap);
    copy_piece<WIDTH>(stage + place_in(line + down, column),
                      exists ? data + corner.element + tap.element : data, exists);
  }
}
#else
// Copy elements `first` and the following ones of the windows of pixels. The lanes of a warp have
// neighbouring pixels.
template <int WARPS>
__device__ __forceinline__ void copy_pixels(Element* stage, const Element* data,
                                            const Corner* corners, int first, int thread) {
  constexpr int ACROSS = TILE_P / 32, PARTS = WARPS / common_divisor(WARPS, ACROSS);
  constexpr int DEEP = LINE / PARTS;
#pragma unroll
  for (int turn = 0; turn < ACROSS * PARTS / WARPS; ++turn) {
    int unit = turn * WARPS + thread / 32;
    int pixel = unit % ACROSS * 32 + thread % 32, deep = unit / ACROSS * DEEP;
    Corner corner = corners[pixel];
    Tap tap = tap_at(first + deep);
    Element* box = stage + pixel / LINE * LINE * LINE;
#pragma unroll
    for (int k = 0; k < DEEP; ++k) {
      bool exists = (ALL_K || first + deep + k < K) && is_inside(corner, tap);
      copy_piece<1>(box + place_in(deep + k, pixel % LINE),
                    exists ? data + corner.element + tap.element : data, exists);
      advance(tap);
    }
  }
}
#endif

// Call `function(place, row, exists)` for each piece of the weights of a step that a thread copies, whose
// first element is `first`, plus `column`: with its place in the stage, and its row in the tile.
template <int WARPS, class Function>
__device__ __forceinline__ void for_weights(int thread, Function function) {
  constexpr int ALONG = LINE / WEIGHT_WIDTH, DOWN = 32 * WARPS / ALONG;
  int column = thread % ALONG * WEIGHT_WIDTH, line = thread / ALONG;
#pragma unroll
  for (int down = 0; down < TILE_C; down += DOWN) {
    if (TILE_C % DOWN != 0 && line + down >= TILE_C) continue;
    function(place_in(line + down, column), line + down, column);
  }
}

template <int WARPS>
__device__ __forceinline__ void copy_weights(Element* stage, const Element* weight,
                                             const Tile& tile, int first, int thread) {
  const Element* row = weight + (tile.group * GROUP_OUT + tile.channel) * K + first;
  for_weights<WARPS>(thread, [&](int place, int line, int column) {
    bool exists = (ALL_K || first + column < K) && (ALL_C || tile.channel + line < GROUP_OUT);
    copy_piece<WEIGHT_WIDTH>(stage + place, exists ? row + line * K + column : weight, exists);
  });
}

// ---- The output

// Where two pixels are in the output, in the first channel of a tile, and whether they exist.
struct Outputs {
  Element* of[2];
  bool exist[2];
};

__device__ __forceinline__ Outputs outputs_at(Element* output, const Tile& tile, int first,
                                              int second) {
  Outputs outputs;
  int channel = tile.group * GROUP_OUT + tile.channel, pixels[2] = {first, second};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    int pixel = tile.pixel + pixels[i];
    outputs.exist[i] = ALL_P || pixel < PIXELS;
    outputs.of[i] = NHWC ? output + pixel * CO + channel
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

// Store the sums of two channels, from `channel` of the tile on, of each of two pixels. If the pixels are
// NEIGHBOURS, the first one has an even number.
template <bool NEIGHBOURS>
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
  if (NHWC && CO % 2 == 0 && GROUP_OUT % 2 == 0) {
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
    int at = (channel + j) * (NHWC ? 1 : PLANE);
    if (!has[j]) continue;
    float first = finished(sums[0][j], biases[j]), second = finished(sums[1][j], biases[j]);
    if (NEIGHBOURS && !NHWC && PLANE % 2 == 0) {
      if (outputs.exist[0]) store_both(outputs.of[0] + at, first, second);
      continue;
    }
    if (outputs.exist[0]) outputs.of[0][at] = Element(first);
    if (outputs.exist[1]) outputs.of[1][at] = Element(second);
  }
}
