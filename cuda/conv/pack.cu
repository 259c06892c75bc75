// The input and the weights of a convolution with channels last, padded with zeros to whole pieces of 16
// bytes, so that the tensor memory accelerator can copy them: in a launch before that of the convolution. Rows and
// columns of the input that no window reads are left out.
//
// The constants of this text are:
//   Element            type of the tensors' elements
//   FROM_NHWC          whether channels are the inner dimension already
//   PACK_IMAGES, PACK_H, PACK_W, PACK_GROUPS   images, rows and columns of one, groups of channels
//   PACK_CI, PACK_CO   channels of the input in a group, and channels of the output
//   PACK_KH, PACK_KW, PACK_DILATION   rows and columns of a window, and how far they are apart
//   PACKED_H, PACKED_W   rows and columns of a packed image
//   Y_TAPS, Y_APART, Y_STEP, Y_FIRST   what packed rows are: so many consecutive ones are Y_STEP rows of the input apart,
//                      begin Y_APART rows after those before, and the first is Y_FIRST, which may be in the padding
//   X_TAPS, X_APART, X_STEP, X_FIRST   the same of columns
//   PADDED             channels of a group with the padding
//   PACK_WIDTH         channels of a row that are read at once: as many of a piece as divide them
//   UNROLLED           whether several elements of each pixel's window are written with all their channels, one after
//                      the other: those are the PADDED elements then
//   UNROLLED_ROWS      rows of a window of which all columns are: one, or all
//   PACK_DATA_BLOCKS   blocks that pack the input; the others pack the weights
//   PACKS_WEIGHTS      whether there are others: weights of a single tap have channels last as they come
//   EARLY              whether the launch of the convolution begins while this one ends
//   PACK_DEEP          channels of weights that a block turns
//   PACKS_DATA         whether the input is packed: weights alone may be split
//   SPLIT_BEFORE       whether weights are split for instructions in bfloat16, see windows.cu
//   WEIGHT_IN          channels of a tap of the weights with the padding
//   TURNED_PIECES, TURNED_PIXELS   pieces of channels, a power of two, and pixels that a block turns

constexpr int PACK_THREADS = 256;

constexpr int PACK_PIECE = 16 / sizeof(Element), PACK_PIECES = PADDED / PACK_PIECE;
constexpr int PACK_PLANE = PACK_H * PACK_W, PACKED_PLANE = PACKED_H * PACKED_W, PACK_TAPS = PACK_KH * PACK_KW;
constexpr int PACK_LENGTH = PACK_CI * PACK_TAPS;  // products of a sum
constexpr bool ALL_PACKED = PACKED_H == PACK_H && Y_APART == Y_TAPS && Y_STEP == 1 && Y_FIRST == 0 &&
                            PACKED_W == PACK_W && X_APART == X_TAPS && X_STEP == 1 && X_FIRST == 0;

// So many elements that follow each other, at a multiple of their bytes.
template <int COUNT>
struct alignas(COUNT * sizeof(Element)) PackedPiece {
  Element of[COUNT];
};

// The row and the column of the input that a packed one is. They may be in the padding.
__device__ __forceinline__ int row_of_packed(int y) { return y / Y_TAPS * Y_APART + y % Y_TAPS * Y_STEP + Y_FIRST; }
__device__ __forceinline__ int column_of_packed(int x) {
  return x / X_TAPS * X_APART + x % X_TAPS * X_STEP + X_FIRST;
}

// The number of a pixel in the input, or -1 if it is in the padding.
__device__ __forceinline__ int pixel_at(int y, int x) {
  bool exists = y >= 0 && y < PACK_H && x >= 0 && x < PACK_W;
  return exists ? y * PACK_W + x : -1;
}

__device__ __forceinline__ int source_of(int pixel) {
  if (ALL_PACKED) return pixel;
  return pixel_at(row_of_packed(pixel / PACKED_W), column_of_packed(pixel % PACKED_W));
}

// Copy PACK_CI elements to PADDED ones, in pieces, of which a thread copies one: all its loads are under way at once.
__device__ __forceinline__ void pad_piece(Element* to, const Element* from, int number, bool exists) {
  int first = number * PACK_PIECE;
  PackedPiece<PACK_PIECE> piece;
#pragma unroll
  for (int i = 0; i < PACK_PIECE; i += PACK_WIDTH) {
    if (exists && first + i < PACK_CI) {
      auto some = *reinterpret_cast<const PackedPiece<PACK_WIDTH>*>(from + first + i);
#pragma unroll
      for (int j = 0; j < PACK_WIDTH; ++j) piece.of[i + j] = some.of[j];
    } else {
#pragma unroll
      for (int j = 0; j < PACK_WIDTH; ++j) piece.of[i + j] = Element(0.0f);
    }
  }
  *reinterpret_cast<PackedPiece<PACK_PIECE>*>(to + first) = piece;
}

// Copy channels of pixels of the input, all those of a group to a row.
__device__ void pad_pixels(Element* to, const Element* from, int block) {
  int place = block * PACK_THREADS + threadIdx.x, row = place / PACK_PIECES;
  if (row >= PACK_IMAGES * PACKED_PLANE * PACK_GROUPS) return;
  int pixel = row / PACK_GROUPS, source = source_of(pixel % PACKED_PLANE);
  int group = pixel / PACKED_PLANE * PACK_PLANE * PACK_GROUPS + source * PACK_GROUPS + row % PACK_GROUPS;
  pad_piece(to + row * PADDED, from + (source < 0 ? 0 : group * PACK_CI), place % PACK_PIECES, source >= 0);
}

// Copy channels of taps of the weights.
__device__ void pad_windows(Element* to, const Element* from, int block) {
  int place = block * PACK_THREADS + threadIdx.x, row = place / PACK_PIECES;
  if (row >= PACK_CO * PACK_TAPS) return;
  pad_piece(to + row * PADDED, from + row * PACK_CI, place % PACK_PIECES, true);
}

#if !FROM_NHWC && !UNROLLED
// Turn some channels of a group and pixels of an image. Threads load neighbouring pixels, all at once, and store pieces
// of channels.
__device__ void turn_pixels(Element* to, const Element* from, int block) {
  constexpr int CHANNELS = TURNED_PIECES * PACK_PIECE, ACROSS = (PACKED_PLANE + TURNED_PIXELS - 1) / TURNED_PIXELS;
  constexpr int DEEP = (PACK_PIECES + TURNED_PIECES - 1) / TURNED_PIECES, COUNT = CHANNELS * TURNED_PIXELS / PACK_THREADS;
  constexpr int PITCH = PACK_GROUPS * PADDED;
  // Threads that read pieces of neighbouring pixels then read other banks.
  __shared__ Element tile[CHANNELS][TURNED_PIXELS + 8 / TURNED_PIECES];
  int group = block / (ACROSS * DEEP), first_piece = block / ACROSS % DEEP * TURNED_PIECES;  // of all images
  int first_channel = first_piece * PACK_PIECE, first_pixel = block % ACROSS * TURNED_PIXELS;
  from += group * PACK_CI * PACK_PLANE;
  to += group / PACK_GROUPS * PACKED_PLANE * PITCH + group % PACK_GROUPS * PADDED;
  Element loaded[COUNT];
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    int place = i * PACK_THREADS + threadIdx.x, channel = first_channel + place / TURNED_PIXELS;
    int pixel = first_pixel + place % TURNED_PIXELS, source = pixel < PACKED_PLANE ? source_of(pixel) : -1;
    loaded[i] = channel < PACK_CI && source >= 0 ? from[channel * PACK_PLANE + source] : Element(0.0f);
  }
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    int place = i * PACK_THREADS + threadIdx.x;
    tile[place / TURNED_PIXELS][place % TURNED_PIXELS] = loaded[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = threadIdx.x; i < TURNED_PIECES * TURNED_PIXELS; i += PACK_THREADS) {
    int number = i % TURNED_PIECES, within = i / TURNED_PIECES, pixel = first_pixel + within;
    if (first_piece + number >= PACK_PIECES || pixel >= PACKED_PLANE) continue;
    PackedPiece<PACK_PIECE> piece;
#pragma unroll
    for (int j = 0; j < PACK_PIECE; ++j) piece.of[j] = tile[number * PACK_PIECE + j][within];
    *reinterpret_cast<PackedPiece<PACK_PIECE>*>(to + pixel * PITCH + (first_piece + number) * PACK_PIECE) = piece;
  }
}
#endif

#if PACKS_WEIGHTS && !FROM_NHWC && !UNROLLED
// Read the windows of up to PACK_DEEP channels from such a one on, which follow each other, to shared memory.
__device__ __forceinline__ const Element* read_windows(const Element* from, int first) {
  __shared__ Element windows[PACK_DEEP * PACK_TAPS];
  int count = max(0, min(PACK_DEEP, PACK_CI - first)) * PACK_TAPS;
#pragma unroll 9
  for (int i = threadIdx.x; i < PACK_DEEP * PACK_TAPS; i += PACK_THREADS) {
    windows[i] = i < count ? from[i] : Element(0.0f);
  }
  __syncthreads();
  return windows;
}
#endif

#if PACKS_WEIGHTS && !FROM_NHWC && !UNROLLED && !SPLIT_BEFORE
// Turn the windows of up to PACK_DEEP channels of one channel of the output.
__device__ void turn_windows(Element* to, const Element* from, int block) {
  constexpr int DEEP = (PADDED + PACK_DEEP - 1) / PACK_DEEP;
  int first = block % DEEP * PACK_DEEP, width = min(PACK_DEEP, PADDED - first);
  const Element* windows = read_windows(from + (block / DEEP * PACK_CI + first) * PACK_TAPS, first);
  to += block / DEEP * PACK_TAPS * PADDED + first;
  for (int i = threadIdx.x; i < width * PACK_TAPS; i += PACK_THREADS) {
    int tap = i / width, channel = i % width;
    to[tap * PADDED + channel] = windows[channel * PACK_TAPS + tap];
  }
}
#endif

#if UNROLLED
constexpr int UNROLLED_LENGTH = UNROLLED_ROWS * PACK_KW * PACK_CI, PARTS_OF_WINDOW_ROWS = PACK_KH / UNROLLED_ROWS;

// Where an element of unrolled rows of a window is: in which row of these, column and channel. The order is that in
// which they follow each other in the weights.
__device__ __forceinline__ int row_of(int k) {
  return FROM_NHWC ? k / PACK_CI / PACK_KW : k / PACK_KW % UNROLLED_ROWS;
}

__device__ __forceinline__ int column_of(int k) {
  return FROM_NHWC ? k / PACK_CI % PACK_KW : k % PACK_KW;
}

__device__ __forceinline__ int channel_of(int k) {
  return FROM_NHWC ? k % PACK_CI : k / PACK_KW / UNROLLED_ROWS;
}

// Write what windows of pixels have in some rows, a piece to each thread.
__device__ void unroll_pixels(Element* to, const Element* from, int block) {
  int place = block * PACK_THREADS + threadIdx.x, pixel = place / PACK_PIECES, row = pixel / PACKED_W;
  if (row >= PACK_IMAGES * PACKED_H) return;
  int image = row / PACKED_H, top = row_of_packed(row % PACKED_H), left = column_of_packed(pixel % PACKED_W);
  PackedPiece<PACK_PIECE> piece;
#pragma unroll
  for (int i = 0; i < PACK_PIECE; ++i) {
    int k = place % PACK_PIECES * PACK_PIECE + i;
    int source = pixel_at(top + row_of(k) * PACK_DILATION, left + column_of(k) * PACK_DILATION);
    int at = FROM_NHWC ? (image * PACK_PLANE + source) * PACK_CI + channel_of(k)
                       : (image * PACK_CI + channel_of(k)) * PACK_PLANE + source;
    piece.of[i] = k < UNROLLED_LENGTH && source >= 0 ? from[at] : Element(0.0f);
  }
  reinterpret_cast<PackedPiece<PACK_PIECE>*>(to)[place] = piece;
}

// Where a weight is among those of a window: element k of the rows that begin at row `top`.
__device__ __forceinline__ int unrolled_weight(int top, int k) {
  return FROM_NHWC ? top * UNROLLED_LENGTH + k
                   : (channel_of(k) * PACK_KH + top + row_of(k)) * PACK_KW + column_of(k);
}

// Write the weights in the same order.
__device__ void unroll_windows(Element* to, const Element* from, int block) {
  int place = block * PACK_THREADS + threadIdx.x, row = place / PACK_PIECES;
  if (row >= PACK_CO * PARTS_OF_WINDOW_ROWS) return;
  int channel = row / PARTS_OF_WINDOW_ROWS, top = row % PARTS_OF_WINDOW_ROWS;
  PackedPiece<PACK_PIECE> piece;
#pragma unroll
  for (int i = 0; i < PACK_PIECE; ++i) {
    int k = place % PACK_PIECES * PACK_PIECE + i;
    piece.of[i] = k < UNROLLED_LENGTH ? from[channel * PACK_LENGTH + unrolled_weight(top, k)] : Element(0.0f);
  }
  reinterpret_cast<PackedPiece<PACK_PIECE>*>(to)[place] = piece;
}
#endif

#if SPLIT_BEFORE
// Write the parts of eight weights, from `first` on, of such a row of a window.
__device__ __forceinline__ void write_split(float* to, int row, int first, const float (&eight)[8]) {
  const float4* pieces = reinterpret_cast<const float4*>(eight);
  CoarseParts parts = coarse_parts_of(pieces[0], pieces[1]);
  float4 *larger = reinterpret_cast<float4*>(to + row * (2 * WEIGHT_IN) + first), *rest = larger + WEIGHT_IN / 4;
  larger[0] = parts.larger[0];
  larger[1] = parts.larger[1];
  reinterpret_cast<uint4*>(rest)[0] = parts.whole;
  reinterpret_cast<uint4*>(rest)[1] = parts.lost;
}

// Split weights, eight at a time.
__device__ void split_windows(float* to, const float* from, int block) {
  alignas(16) float eight[8];
#if FROM_NHWC || UNROLLED
#if UNROLLED
  constexpr int ROWS = PARTS_OF_WINDOW_ROWS, EXISTING = UNROLLED_LENGTH;
#else
  constexpr int ROWS = PACK_TAPS, EXISTING = PACK_CI;
#endif
  int place = block * PACK_THREADS + threadIdx.x, row = place / (WEIGHT_IN / 8), first = place % (WEIGHT_IN / 8) * 8;
  if (row >= PACK_CO * ROWS) return;
  from += row / ROWS * PACK_LENGTH;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    int k = first + i;
#if UNROLLED
    int at = unrolled_weight(row % ROWS, k);
#else
    int at = row % ROWS * PACK_CI + k;
#endif
    eight[i] = k < EXISTING ? from[at] : 0.0f;
  }
  write_split(to, row, first, eight);
#else
  constexpr int DEEP = (WEIGHT_IN + PACK_DEEP - 1) / PACK_DEEP;
  int filter = block / DEEP, first = block % DEEP * PACK_DEEP;
  const float* windows = read_windows(from + (filter * PACK_CI + first) * PACK_TAPS, first);
  for (int i = threadIdx.x; i < PACK_DEEP / 8 * PACK_TAPS; i += PACK_THREADS) {
    int tap = i % PACK_TAPS, channel = i / PACK_TAPS * 8;
    if (first + channel >= WEIGHT_IN) break;
#pragma unroll
    for (int j = 0; j < 8; ++j) eight[j] = windows[(channel + j) * PACK_TAPS + tap];
    write_split(to, filter * PACK_TAPS + tap, first + channel, eight);
  }
#endif
}
#endif

extern "C" __global__ void __launch_bounds__(PACK_THREADS) pack(
#if PACKS_DATA
    const Element* __restrict__ data,
#endif
#if PACKS_WEIGHTS
    const Element* __restrict__ weight,
#endif
#if PACKS_DATA && PACKS_WEIGHTS
    Element* __restrict__ packed_data,
#elif PACKS_DATA
    Element* __restrict__ packed_data) {
#endif
#if PACKS_WEIGHTS
    Element* __restrict__ packed_weight) {
#endif
#if EARLY
  asm volatile("griddepcontrol.launch_dependents;");  // blocks of the convolution may begin
#endif
  int block = blockIdx.x;
#if PACKS_DATA
  if (block < PACK_DATA_BLOCKS) {
#if UNROLLED
    unroll_pixels(packed_data, data, block);
#elif FROM_NHWC
    pad_pixels(packed_data, data, block);
#else
    turn_pixels(packed_data, data, block);
#endif
    return;
  }
  block -= PACK_DATA_BLOCKS;
#endif
#if SPLIT_BEFORE
  split_windows(packed_weight, weight, block);
#elif PACKS_WEIGHTS
#if UNROLLED
  unroll_windows(packed_weight, weight, block);
#elif FROM_NHWC
  pad_windows(packed_weight, weight, block);
#else
  turn_windows(packed_weight, weight, block);
#endif
#endif
}
