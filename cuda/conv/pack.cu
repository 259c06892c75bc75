// The input and the weights of a convolution with channels last, padded with zeros to whole pieces of 16
// bytes, so that the tensor memory accelerator can copy them: in a launch before that of the convolution.
//
// The constants of this text are:
//   Element            type of the tensors' elements
//   FROM_NHWC          whether channels are the inner dimension already
//   PACK_IMAGES, PACK_PLANE, PACK_GROUPS   images, pixels of one, groups of channels
//   PACK_CI, PACK_CO, PACK_TAPS   channels of the input in a group, channels of the output, elements of a window
//   PADDED             channels of a group with the padding
//   PACK_WIDTH         channels of a row that are read at once: as many of a piece as divide them
//   UNROLLED           whether each row of each pixel's window is written with all its channels, one after the
//                      other: those are the PADDED elements then
//   PACK_COLUMNS, PACK_WINDOW, PACK_STRIDE   columns of an image and of a window, and the stride (with PADDING,
//                      DILATION, OW, H and KH of windows.cu)
//   PACK_DATA_BLOCKS   blocks that pack the input; the others pack the weights
//   PACKS_WEIGHTS      whether there are others: weights of a single tap have channels last as they come
//   EARLY              whether the launch of the convolution begins while this one ends
//   PACK_DEEP          channels of weights that a block turns

constexpr int PACK_THREADS = 256;

constexpr int PACK_PIECE = 16 / sizeof(Element), PACK_PIECES = PADDED / PACK_PIECE;

// So many elements that follow each other, at a multiple of their bytes.
template <int COUNT>
struct alignas(COUNT * sizeof(Element)) PackedPiece {
  Element of[COUNT];
};

// Copy rows of PACK_CI elements to rows of PADDED ones, a piece to each thread, so that all its loads are under
// way at once.
__device__ void pad_rows(Element* to, const Element* from, int rows, int block) {
  int place = block * PACK_THREADS + threadIdx.x, row = place / PACK_PIECES;
  int first = place % PACK_PIECES * PACK_PIECE;
  if (row >= rows) return;
  const Element* channels = from + row * PACK_CI + first;
  PackedPiece<PACK_PIECE> piece;
#pragma unroll
  for (int i = 0; i < PACK_PIECE; i += PACK_WIDTH) {
    if (first + i < PACK_CI) {
      auto some = *reinterpret_cast<const PackedPiece<PACK_WIDTH>*>(channels + i);
#pragma unroll
      for (int j = 0; j < PACK_WIDTH; ++j) piece.of[i + j] = some.of[j];
    } else {
#pragma unroll
      for (int j = 0; j < PACK_WIDTH; ++j) piece.of[i + j] = Element(0.0f);
    }
  }
  reinterpret_cast<PackedPiece<PACK_PIECE>*>(to)[place] = piece;
}

// Turn 32 channels of a group and 32 pixels of an image.
__device__ void turn_pixels(Element* to, const Element* from, int block) {
  constexpr int SIDE = 32, ACROSS = (PACK_PLANE + SIDE - 1) / SIDE, DEEP = (PADDED + SIDE - 1) / SIDE;
  __shared__ Element tile[SIDE][SIDE + 1];
  constexpr int PITCH = PACK_GROUPS * PADDED;
  int group = block / (ACROSS * DEEP), first_channel = block / ACROSS % DEEP * SIDE;  // of all images
  int first_pixel = block % ACROSS * SIDE, along = threadIdx.x % SIDE, down = threadIdx.x / SIDE;
  from += group * PACK_CI * PACK_PLANE;
  to += group / PACK_GROUPS * PACK_PLANE * PITCH + group % PACK_GROUPS * PADDED;
#pragma unroll
  for (int i = down; i < SIDE; i += PACK_THREADS / SIDE) {
    int channel = first_channel + i, pixel = first_pixel + along;
    bool exists = channel < PACK_CI && pixel < PACK_PLANE;
    tile[i][along] = exists ? from[channel * PACK_PLANE + pixel] : Element(0.0f);
  }
  __syncthreads();
#pragma unroll
  for (int i = down; i < SIDE; i += PACK_THREADS / SIDE) {
    int channel = first_channel + along, pixel = first_pixel + i;
    if (channel < PADDED && pixel < PACK_PLANE) to[pixel * PITCH + channel] = tile[along][i];
  }
}

#if PACKS_WEIGHTS && !FROM_NHWC && !UNROLLED
// Turn the windows of up to PACK_DEEP channels, which follow each other, of one channel of the output.
__device__ void turn_windows(Element* to, const Element* from, int block) {
  constexpr int DEEP = (PADDED + PACK_DEEP - 1) / PACK_DEEP;
  __shared__ Element windows[PACK_DEEP * PACK_TAPS];
  int first = block % DEEP * PACK_DEEP;
  from += (block / DEEP * PACK_CI + first) * PACK_TAPS;
  to += block / DEEP * PACK_TAPS * PADDED + first;
  int count = max(0, min(PACK_DEEP, PACK_CI - first)) * PACK_TAPS, width = min(PACK_DEEP, PADDED - first);
#pragma unroll 9
  for (int i = threadIdx.x; i < PACK_DEEP * PACK_TAPS; i += PACK_THREADS) {
    windows[i] = i < count ? from[i] : Element(0.0f);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < width * PACK_TAPS; i += PACK_THREADS) {
    int tap = i / width, channel = i % width;
    to[tap * PADDED + channel] = windows[channel * PACK_TAPS + tap];
  }
}
#endif

#if UNROLLED
// Where an element of a row of a window is: in which column, and in which channel. The order is that in which they
// follow each other in the weights.
__device__ __forceinline__ int column_of(int k) {
  return FROM_NHWC ? k / PACK_CI : k % PACK_WINDOW;
}

__device__ __forceinline__ int channel_of(int k) {
  return FROM_NHWC ? k % PACK_CI : k / PACK_WINDOW;
}

// Write a row of the windows of pixels that are in a row of the output, a piece to each thread.
__device__ void unroll_pixels(Element* to, const Element* from, int block) {
  int place = block * PACK_THREADS + threadIdx.x, pixel = place / PACK_PIECES;
  int row = pixel / OW, left = pixel % OW * PACK_STRIDE - PADDING;
  if (row >= IMAGES * H) return;
  PackedPiece<PACK_PIECE> piece;
#pragma unroll
  for (int i = 0; i < PACK_PIECE; ++i) {
    int k = place % PACK_PIECES * PACK_PIECE + i, x = left + column_of(k) * DILATION;
    int at = FROM_NHWC ? (row * PACK_COLUMNS + x) * PACK_CI + channel_of(k)
                       : ((row / H * PACK_CI + channel_of(k)) * H + row % H) * PACK_COLUMNS + x;
    bool exists = k < PACK_WINDOW * PACK_CI && x >= 0 && x < PACK_COLUMNS;
    piece.of[i] = exists ? from[at] : Element(0.0f);
  }
  reinterpret_cast<PackedPiece<PACK_PIECE>*>(to)[place] = piece;
}

// Write the weights in the same order.
__device__ void unroll_windows(Element* to, const Element* from, int block) {
  int place = block * PACK_THREADS + threadIdx.x, row = place / PACK_PIECES;
  if (row >= PACK_CO * KH) return;
  PackedPiece<PACK_PIECE> piece;
#pragma unroll
  for (int i = 0; i < PACK_PIECE; ++i) {
    int k = place % PACK_PIECES * PACK_PIECE + i;
    int at = FROM_NHWC ? row * PACK_WINDOW * PACK_CI + k
                       : ((row / KH * PACK_CI + channel_of(k)) * KH + row % KH) * PACK_WINDOW + column_of(k);
    piece.of[i] = k < PACK_WINDOW * PACK_CI ? from[at] : Element(0.0f);
  }
  reinterpret_cast<PackedPiece<PACK_PIECE>*>(to)[place] = piece;
}
#endif

extern "C" __global__ void __launch_bounds__(PACK_THREADS)
#if PACKS_WEIGHTS
    pack(const Element* __restrict__ data, const Element* __restrict__ weight,
         Element* __restrict__ packed_data, Element* __restrict__ packed_weight) {
#else
    pack(const Element* __restrict__ data, Element* __restrict__ packed_data) {
#endif
#if EARLY
  asm volatile("griddepcontrol.launch_dependents;");  // blocks of the convolution may begin
#endif
  int block = blockIdx.x;
  if (block < PACK_DATA_BLOCKS) {
#if UNROLLED
    unroll_pixels(packed_data, data, block);
#elif FROM_NHWC
    pad_rows(packed_data, data, PACK_IMAGES * PACK_PLANE * PACK_GROUPS, block);
#else
    turn_pixels(packed_data, data, block);
#endif
    return;
  }
#if PACKS_WEIGHTS
  block -= PACK_DATA_BLOCKS;
#if UNROLLED
  unroll_windows(packed_weight, weight, block);
#elif FROM_NHWC
  pad_rows(packed_weight, weight, PACK_CO * PACK_TAPS, block);
#else
  turn_windows(packed_weight, weight, block);
#endif
#endif
}
