// Copies of blocks by threads, from float32 inputs in NCHW: a few channels of all elements of a window.
//
// Weights are stored channel by channel, in which the elements of a window follow each other. A step has
// CHANNELS channels of them, in STEP_ROWS rows of the window. In shared memory, what a window has of a tap
// in eight channels is multiplied by one instruction. All addresses of a thread's copies are constant
// distances apart, and bits tell which taps of a pixel are not in the padding.
//
// The constants of this text are:
//   CHANNELS           channels of the input in a step, a multiple of 8
//   STEP_ROWS          rows of the window in a step: KH or 1

constexpr int STEP_TAPS = STEP_ROWS * KW, STEP_K = STEP_TAPS * CHANNELS;
constexpr int PARTS_OF_WINDOW = KH / STEP_ROWS;
constexpr int STEPS = (GROUP_IN + CHANNELS - 1) / CHANNELS * PARTS_OF_WINDOW;
constexpr bool ALL_CHANNELS = GROUP_IN % CHANNELS == 0;
constexpr int COUNT = STEP_K / 8;
constexpr int CHUNK = (COUNT + (COUNT + 3) / 4 - 1) / ((COUNT + 3) / 4);  // of up to four, evenly
constexpr int LINE = 32;  // pixels
constexpr int FULL_ARRIVALS = WARPS;

// Of the weights, four products of all channels of a tile follow each other, and then 16 bytes, with which
// products of a channel are in different banks.
constexpr int FOURS = TILE_C * 4 + 4;
constexpr int P_STAGE = TILE_P * STEP_K, C_STAGE = STEP_K / 4 * FOURS;
static_assert(CHANNELS % 8 == 0 && (STEP_ROWS == KH || STEP_ROWS == 1), "whole instructions");

// A place in lines of 128 bytes, whose pieces of 16 bytes are swizzled.
__device__ __forceinline__ int place_in(int line, int column) {
  return line * LINE + ((column / 4 ^ line % 8) * 4 | column % 4);
}

__device__ __forceinline__ unsigned long long described_weights(const Element* weights, int number) {
  return described<0>(weights + 2 * number * FOURS, 4 * FOURS, 128);
}

// The pixels of a warpgroup's tile whose sums a thread has: neighbours, in an order in which reading lines
// has no bank conflicts.
constexpr bool NEIGHBOURS = true;

__device__ __forceinline__ int pixel_of(int i) {
  int thread = threadIdx.x, warp = thread / 32 % 4, group = thread % 32 / 4;
  int piece = group / 2 % 2 * 4 + group / 4 * 2 + warp % 2;
  return thread / 128 * 64 + warp / 2 * LINE + piece * 4 + group % 2 * 2 + i;
}

__device__ __forceinline__ Rows rows_at(const Element* pixels, int number) {
  int pixel = pixel_of(0);
  const Element* lines = pixels + pixel / LINE * STEP_K * LINE;
  Rows rows;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    int line = number * 8 + i * 4 + threadIdx.x % 4;
    uint2 both = *reinterpret_cast<const uint2*>(lines + place_in(line, pixel % LINE));
    rows.of[2 * i] = both.x;
    rows.of[2 * i + 1] = both.y;
  }
  return rows;
}

// Where the window of a pixel begins, and which of its taps are in the input: bits of all, or of its rows and
// of its columns.
struct alignas(16) Corner {
  int element;
  unsigned taps, rows, columns;
};

__device__ __forceinline__ Corner corner_of(int pixel, int group) {
  if (!ALL_P && pixel >= PIXELS) return {0, 0, 0, 0};
  Origin at = origin_of(pixel);
  Corner corner = {((at.image * CI + group * GROUP_IN) * H + at.y) * W + at.x, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < KH; ++i) {
    corner.rows |= (static_cast<unsigned>(at.y + i * DILATION) < H) << i;
  }
#pragma unroll
  for (int i = 0; i < KW; ++i) {
    corner.columns |= (static_cast<unsigned>(at.x + i * DILATION) < W) << i;
  }
  if (STEP_ROWS == KH) {
#pragma unroll
    for (int i = 0; i < KH; ++i) corner.taps |= (corner.rows >> i & 1 ? corner.columns : 0) << i * KW;
  }
  return corner;
}

__device__ __forceinline__ void copy_element(unsigned to, const Element* from, bool exists) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
               :: "r"(to), "l"(from), "r"(exists ? 4 : 0) : "memory");
}

__device__ __forceinline__ void copy_step(const Stage& stage, const Element* data,
                                          const Element* weight, const Corner* corners,
                                          const Tile& tile, int step, int thread) {
  constexpr int ACROSS = TILE_P / LINE, PARTS = WARPS / common_divisor(WARPS, ACROSS);
  constexpr int DEEP = CHANNELS / PARTS;  // channels that a warp copies
  int first = step / PARTS_OF_WINDOW * CHANNELS, row = step % PARTS_OF_WINDOW;
  int warp = thread / 32, lane = thread % 32;
#pragma unroll
  for (int turn = 0; turn < ACROSS * PARTS / WARPS; ++turn) {
    int unit = turn * WARPS + warp, group = unit % ACROSS, deep = unit / ACROSS * DEEP;
    Corner corner = corners[group * LINE + lane];
    unsigned taps = STEP_ROWS == KH ? corner.taps : corner.rows >> row & 1 ? corner.columns : 0;
    // Each copy is an instruction: its addresses are those of a channel, and constants.
    const Element* from[DEEP];
    unsigned to[DEEP];
#pragma unroll
    for (int i = 0; i < DEEP; ++i) {
      from[i] = data + corner.element + (first + deep + i) * (H * W) + row * DILATION * W;
      to[i] = shared_address(stage.pixels + group * STEP_K * LINE + place_in(deep + i, lane));
    }
#pragma unroll
    for (int tap = 0; tap < STEP_TAPS; ++tap) {
      bool inside = taps >> tap & 1;
#pragma unroll
      for (int i = 0; i < DEEP; ++i) {
        bool exists = inside && (ALL_CHANNELS || first + deep + i < GROUP_IN);
        copy_element(to[i] + tap * CHANNELS * 128, from[i] + (tap / KW * W + tap % KW) * DILATION,
                     exists);
      }
    }
  }
  const Element* rows = weight + (tile.group * GROUP_OUT + tile.channel + warp) * K + first * TAPS +
                        row * KW;
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
