// Copies of lines by threads, from any input: consecutive products are wherever the window has them.
//
// The constants of this text are:
//   WIDTH, WEIGHT_WIDTH   elements that are copied at once from the input and from the weights: in NHWC of
//                      neighbouring channels, in NCHW of neighbouring pixels, if their windows are neighbours
//
// In NHWC, a line has elements of one pixel. In NCHW, it has the same element of the windows of LINE pixels.

constexpr int STEPS = (K + LINE - 1) / LINE;
constexpr bool ALL_K = K % LINE == 0;
constexpr int FULL_ARRIVALS = WARPS;
static_assert(LINE_BYTES == 128 && BOXES == 1, "a step has one line of each pixel");

// Where the window of a pixel begins: as an element of the input, and its row and column there.
struct alignas(16) Corner {
  int element, y, x, unused;
};

constexpr bool CORNERS = true;

__device__ __forceinline__ Corner corner_of(const Tile& tile, int i) {
  constexpr int FAR = -(1 << 30);  // no window is there
  int pixel = tile.pixel + i, group = tile.group;
  if (!ALL_P && pixel >= tile.end) return {0, FAR, FAR, 0};
  Origin at = origin_of(pixel);
#if NHWC
  return {((at.image * H + at.y) * W + at.x) * CI + group * GROUP_IN, at.y, at.x, 0};
#else
  return {((at.image * CI + group * GROUP_IN) * H + at.y) * W + at.x, at.y, at.x, 0};
#endif
}

// The place of an element of a window, from its corner on.
struct Tap {
  int element, y, x;
};

__device__ __forceinline__ Tap tap_at(int k) {
  int channel = NHWC ? k % GROUP_IN : k / TAPS, place = NHWC ? k / GROUP_IN : k % TAPS;
  int y = place / KW * DILATION, x = place % KW * DILATION;
  return {NHWC ? (y * W + x) * CI + channel : (channel * H + y) * W + x, y, x};
}

__device__ __forceinline__ bool is_inside(const Corner& corner, const Tap& tap) {
  if (PADDING == 0) return ALL_P || corner.y >= 0;
  return static_cast<unsigned>(corner.y + tap.y) < H && static_cast<unsigned>(corner.x + tap.x) < W;
}

// Whether elements that are copied one by one have 16 bits: no copy past the registers is so short. A thread loads
// those of a piece, all at once, and stores them together.
template <int COUNT>
constexpr bool LOADED = COUNT * sizeof(Element) < 4;

struct alignas(16) Loaded {
  unsigned short of[PIECE];
};

__device__ __forceinline__ unsigned short bits_at(const Element* from, bool exists) {
  return exists ? __ldg(reinterpret_cast<const unsigned short*>(from)) : 0;
}

#if NHWC
// Copy lines: elements `first` and the following ones of windows.
__device__ __forceinline__ void load_pixels(Element* stage, const Element* data,
                                            const Corner* corners, int first, int thread) {
  constexpr int ALONG = LINE / PIECE, DOWN = 32 * WARPS / ALONG;
  int column = thread % ALONG * PIECE, line = thread / ALONG;
  Tap taps[PIECE];
#pragma unroll
  for (int i = 0; i < PIECE; ++i) taps[i] = tap_at(first + column + i);
#pragma unroll 2
  for (int down = 0; down < TILE_P; down += DOWN) {
    if (TILE_P % DOWN != 0 && line + down >= TILE_P) continue;
    Corner corner = corners[line + down];
    Loaded piece;
#pragma unroll
    for (int i = 0; i < PIECE; ++i) {
      bool exists = (ALL_K || first + column + i < K) && is_inside(corner, taps[i]);
      piece.of[i] = bits_at(data + (exists ? corner.element + taps[i].element : 0), exists);
    }
    *reinterpret_cast<Loaded*>(stage + place_in(line + down, column)) = piece;
  }
}

__device__ __forceinline__ void copy_pixels(Element* stage, const Element* data,
                                            const Corner* corners, int first, int thread) {
  if constexpr (LOADED<WIDTH>) return load_pixels(stage, data, corners, first, thread);
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
// The lanes of a warp have neighbouring pixels, the same ones in all elements that a thread copies.
constexpr int PIXELS_OF_LANE = TILE_P / 32, ELEMENTS_OF_WARP = LINE / WARPS;
static_assert(TILE_P % LINE == 0 && LINE % WARPS == 0, "lines are whole, and divided evenly");

// Eight pixels of four lines are in different banks if they are read one by one, or by 16 bytes.
__device__ __forceinline__ int place_of(int k, int pixel) {
  int within = HALVES ? place_in(k, pixel % LINE) : k * LINE + (pixel % LINE ^ k % 4 * 8);
  return pixel / LINE * LINE * LINE + within;
}

// Call `each` with a number from 0 on, its place in the input, and whether it is there, for each element that a
// thread copies of lines: of elements `first` and the following ones of windows. UNROLLED of these are found at
// a time, which takes so many registers.
template <int UNROLLED, class Each>
__device__ __forceinline__ void visit_pixels(const Corner* corners, int first, int thread,
                                             const Each& each) {
  Corner own[PIXELS_OF_LANE];
#pragma unroll
  for (int j = 0; j < PIXELS_OF_LANE; ++j) own[j] = corners[j * 32 + thread % 32];
#pragma unroll UNROLLED
  for (int i = 0; i < ELEMENTS_OF_WARP; ++i) {
    int k = first + i * WARPS + thread / 32;
    Tap tap = tap_at(k);
#pragma unroll
    for (int j = 0; j < PIXELS_OF_LANE; ++j) {
      bool exists = (ALL_K || k < K) && is_inside(own[j], tap);
      each(i * PIXELS_OF_LANE + j, own[j].element + tap.element, exists);
    }
  }
}

__device__ __forceinline__ int place_of_copy(int number, int thread) {
  return place_of(number / PIXELS_OF_LANE * WARPS + thread / 32,
                  number % PIXELS_OF_LANE * 32 + thread % 32);
}

__device__ __forceinline__ void copy_pixels(Element* stage, const Element* data,
                                            const Corner* corners, int first, int thread) {
  if constexpr (WIDTH == 1) {
    visit_pixels<2>(corners, first, thread, [&](int number, int element, bool exists) {
      copy_piece<1>(stage + place_of_copy(number, thread), data + (exists ? element : 0), exists);
    });
  } else {
    constexpr int ALONG = TILE_P / WIDTH;
#pragma unroll 4
    for (int i = thread; i < LINE * ALONG; i += 32 * WARPS) {
      int k = i / ALONG, pixel = i % ALONG * WIDTH;
      Corner corner = corners[pixel];
      Tap tap = tap_at(first + k);
      bool exists = (ALL_K || first + k < K) && is_inside(corner, tap);
      copy_piece<WIDTH>(stage + place_of(k, pixel),
                        data + (exists ? corner.element + tap.element : 0), exists);
    }
  }
}
#endif

__device__ __forceinline__ void load_weights(Element* stage, const Element* weight,
                                             const Tile& tile, int first, int thread) {
  constexpr int ALONG = LINE / PIECE, DOWN = 32 * WARPS / ALONG;
  int column = thread % ALONG * PIECE, line = thread / ALONG;
  const Element* from = weight + (tile.group * GROUP_OUT + tile.channel + line) * K + first + column;
#pragma unroll 2
  for (int down = 0; down < TILE_C; down += DOWN) {
    if (TILE_C % DOWN != 0 && line + down >= TILE_C) continue;
    bool any = ALL_C || tile.channel + line + down < GROUP_OUT;
    Loaded piece;
#pragma unroll
    for (int i = 0; i < PIECE; ++i) {
      bool exists = any && (ALL_K || first + column + i < K);
      piece.of[i] = bits_at(exists ? from + down * K + i : weight, exists);
    }
    *reinterpret_cast<Loaded*>(stage + place_in(line + down, column)) = piece;
  }
}

__device__ __forceinline__ void copy_weights(Element* stage, const Element* weight,
                                             const Tile& tile, int first, int thread) {
  if constexpr (LOADED<WEIGHT_WIDTH>) return load_weights(stage, weight, tile, first, thread);
  constexpr int ALONG = LINE / WEIGHT_WIDTH, DOWN = 32 * WARPS / ALONG;
  int column = thread % ALONG * WEIGHT_WIDTH, line = thread / ALONG;
  bool any = ALL_K || first + column < K;
  const Element* from = weight + (tile.group * GROUP_OUT + tile.channel + line) * K + first + column;
#pragma unroll
  for (int down = 0; down < TILE_C; down += DOWN) {
    if (TILE_C % DOWN != 0 && line + down >= TILE_C) continue;
    bool exists = any && (ALL_C || tile.channel + line + down < GROUP_OUT);
    copy_piece<WEIGHT_WIDTH>(stage + place_in(line + down, column),
                             exists ? from + down * K : weight, exists);
  }
}

__device__ __forceinline__ void copy_step(const Stage& stage, const Element* data,
                                          const Element* weight, const Corner* corners,
                                          const Tile& tile, int step, bool weights, int thread) {
  copy_pixels(stage.pixels, data, corners, step * LINE, thread);
  if (weights) copy_weights(stage.weights, weight, tile, step * LINE, thread);
}

__device__ __forceinline__ void write_rest_of_weights(const Stage& stage, int thread) {
#if SPLIT
  write_rest<1, C_STAGE, C_STAGE, 32 * WARPS>(stage.rest_of_weights, stage.weights, thread);
#endif
}
