// Copies of blocks by threads, from float32 inputs in NCHW: a few channels of a part of an image.
//
// A step has CHANNELS channels, in which the windows of all pixels of a tile are in a run of elements, or in one for
// each row of the window. Only these runs are copied: the threads that multiply find the elements of windows in
// them, and take 0 for those in the padding. Weights are stored channel by channel, too. One instruction
// multiplies what windows have of a tap in eight channels.
//
// The constants of this text are:
//   CHANNELS           channels of the input in a step, a multiple of 8
//   STEP_ROWS          rows of the window in a step: KH or 1
//   RUNS               runs of a channel in a step: 1, or one for each row of the window
//   BEFORE             elements of a run before the corner of the first pixel's window
//   RUN                elements of a run, a multiple of 4
//   PITCH              distance of channels in shared memory
//   WIDTH              elements that are copied at once: 4 or 2 if runs can begin at a multiple of them, or 1

constexpr int STEP_TAPS = STEP_ROWS * KW, STEP_K = STEP_TAPS * CHANNELS;
constexpr int PARTS_OF_WINDOW = KH / STEP_ROWS;
constexpr int STEPS = (GROUP_IN + CHANNELS - 1) / CHANNELS * PARTS_OF_WINDOW;
constexpr bool ALL_CHANNELS = GROUP_IN % CHANNELS == 0;
constexpr int COUNT = STEP_K / 8;
constexpr int CHUNK = (COUNT + (COUNT + 3) / 4 - 1) / ((COUNT + 3) / 4);  // of up to four, evenly
constexpr int FULL_ARRIVALS = WARPS;

// Of the weights, four products of all channels of a tile follow each other, and then 16 bytes, with which
// products of a channel are in different banks.
constexpr int FOURS = TILE_C * 4 + 4;
constexpr int P_STAGE = (CHANNELS * PITCH + 3) / 4 * 4, C_STAGE = STEP_K / 4 * FOURS;
static_assert(CHANNELS % 8 == 0 && (STEP_ROWS == KH || STEP_ROWS == 1), "whole instructions");

__device__ __forceinline__ unsigned long long described_weights(const Element* weights, int number) {
  return described<0>(weights + 2 * number * FOURS, 4 * FOURS, 128);
}

// Where the window of a pixel begins, as an element of the input's first channel of a group.
__device__ __forceinline__ int corner_of(const Origin& at, int group) {
  return ((at.image * CI + group * GROUP_IN) * H + at.y) * W + at.x;
}

// ---- The threads that multiply

// The pixels of a warpgroup's tile whose sums a thread has.
__device__ __forceinline__ int pixel_of(int i) {
  return threadIdx.x / 32 * 16 + i * 8 + threadIdx.x % 32 / 4;
}

// Where the windows of a thread's pixels begin in the run of the first of its channels, and which of their
// taps are in the input: bits of all taps of a step, or of rows and columns.
struct Window {
  int place[2];
  unsigned taps[2], rows[2], columns[2];
};

__device__ __forceinline__ Window window_of(const Tile& tile) {
  Window window;
  int first = corner_of(origin_of(tile.pixel), tile.group) - BEFORE;
  first -= (first % WIDTH + WIDTH) % WIDTH;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    int pixel = tile.pixel + pixel_of(i);
    bool exists = ALL_P || pixel < tile.end;
    Origin at = origin_of(exists ? pixel : tile.pixel);
    window.place[i] = threadIdx.x % 4 * PITCH + corner_of(at, tile.group) - first;
    unsigned rows = 0, columns = 0, taps = 0;
#pragma unroll
    for (int j = 0; j < KH; ++j) {
      rows |= (exists && static_cast<unsigned>(at.y + j * DILATION) < H) << j;
    }
#pragma unroll
    for (int j = 0; j < KW; ++j) columns |= (static_cast<unsigned>(at.x + j * DILATION) < W) << j;
    if (STEP_ROWS == KH) {
#pragma unroll
      for (int j = 0; j < KH; ++j) taps |= (rows >> j & 1 ? columns : 0) << j * KW;
    }
    window.taps[i] = taps;
    window.rows[i] = rows;
    window.columns[i] = columns;
  }
  return window;
}

__device__ __forceinline__ void go_to(Window& window, int step) {
  if (STEP_ROWS == KH) return;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    window.taps[i] = window.rows[i] >> step % PARTS_OF_WINDOW & 1 ? window.columns[i] : 0;
  }
}

__device__ __forceinline__ Rows rows_at(const Element* pixels, const Window& window, int number) {
  int tap = number * 8 / CHANNELS, y = tap / KW, x = tap % KW;
  int there = number * 8 % CHANNELS * PITCH + (RUNS > 1 ? y * RUN : y * W * DILATION) + x * DILATION;
  Rows rows;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float element = pixels[window.place[i % 2] + there + i / 2 * 4 * PITCH];
    rows.of[i] = window.taps[i % 2] >> tap & 1 ? __float_as_uint(element) : 0;
  }
  return rows;
}

// ---- The threads that copy

// They need not know where the windows of pixels begin.
struct Corner {};
constexpr bool CORNERS = false;

__device__ __forceinline__ Corner corner_of(const Tile&, int) { return {}; }

__device__ __forceinline__ void copy_pixels(Element* stage, const Element* data, const Tile& tile,
                                            int step, int thread) {
  constexpr int PIECES = RUN / WIDTH, TOTAL = IMAGES * CI * H * W;
  int channel = step / PARTS_OF_WINDOW * CHANNELS, row = step % PARTS_OF_WINDOW;
  int first = corner_of(origin_of(tile.pixel), tile.group) - BEFORE;
  first += channel * (H * W) + row * W * DILATION - (first % WIDTH + WIDTH) % WIDTH;
#pragma unroll 4
  for (int i = thread; i < CHANNELS * RUNS * PIECES; i += 32 * WARPS) {
    int run = i / PIECES, along = i % PIECES * WIDTH, of_channel = run % RUNS;
    int element = first + run / RUNS * (H * W) + of_channel * (W * DILATION) + along;
    bool exists = static_cast<unsigned>(element) < TOTAL &&
                  (ALL_CHANNELS || channel + run / RUNS < GROUP_IN);
    copy_piece<WIDTH>(stage + run / RUNS * PITCH + of_channel * RUN + along,
                      exists ? data + element : data, exists);
  }
}

__device__ __forceinline__ void copy_element(unsigned to, const Element* from, bool exists) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
               :: "r"(to), "l"(from), "r"(exists ? 4 : 0) : "memory");
}

__device__ __forceinline__ void copy_step(const Stage& stage, const Element* data,
                                          const Element* weight, const Corner*, const Tile& tile,
                                          int step, bool weights, int thread) {
  copy_pixels(stage.pixels, data, tile, step, thread);
  if (!weights) return;
  int first = step / PARTS_OF_WINDOW * CHANNELS, row = step % PARTS_OF_WINDOW;
  int warp = thread / 32, lane = thread % 32;
  const Element* rows = weight + (tile.group * GROUP_OUT + tile.channel + warp) * K + first * TAPS +
                        row * KW;
  // Each copy is an instruction: its addresses are those of a product, and constants.
#pragma unroll
  for (int along = 0; along < STEP_K; along += 32) {
    int element = along + lane, channel = element / STEP_TAPS, tap = element % STEP_TAPS;
    if (STEP_K % 32 != 0 && element >= STEP_K) continue;
    bool any = ALL_CHANNELS || first + channel < GROUP_IN;
    int line = tap * CHANNELS + channel;
    const Element* from = rows + channel * TAPS + tap;
    unsigned to = shared_address(stage.weights + line / 4 * FOURS + line % 4 + warp * 4);
#pragma unroll 16
    for (int down = 0; down < TILE_C; down += WARPS) {
      bool exists = any && (ALL_C || tile.channel + down + warp < GROUP_OUT);
      copy_element(to + down * 16, from + down * K, exists);
    }
  }
}

__device__ __forceinline__ void write_rest_of_weights(const Stage& stage, int thread) {
#if SPLIT
  write_rest<STEP_K / 4, TILE_C * 4, FOURS, 32 * WARPS>(stage.rest_of_weights, stage.weights,
                                                        thread);
#endif
}
