// How instructions for Hopper find operands in lines: after lines.cu.

// A matrix in lines, as an instruction of this number in its step expects it.
__device__ __forceinline__ unsigned long long described_lines(const Element* boxes, int lines,
                                                              int number) {
  const Element* box = boxes + number / INSTRUCTIONS * lines * LINE;
  return described<LINE_BYTES>(box, 0, 8 * LINE_BYTES) +
         number % INSTRUCTIONS * (32 / DESCRIBED_BYTES);
}

__device__ __forceinline__ unsigned long long described_weights(const Element* weights, int number) {
  return described_lines(weights, TILE_C, number);
}

__device__ __forceinline__ unsigned long long described_pixels(const Element* pixels, int number) {
#if NHWC
  return described_lines(pixels + own_warpgroup() * 64 * LINE, TILE_P, number);
#else
  // Lines of pixels, with consecutive products one below the other.
  return described<128>(pixels + own_warpgroup() * 64 * LINE, LINE * 128, 1024) +
         number * (16 * 128 / DESCRIBED_BYTES);
#endif
}

// The pixels of a warpgroup's tile whose sums a thread has.
__device__ __forceinline__ int pixel_of(int i) {
  return threadIdx.x / 32 * 16 + i * 8 + threadIdx.x % 32 / 4;
}

// What a thread knows of its pixels: nothing, since lines have all elements of windows.
struct Window {};

__device__ __forceinline__ Window window_of(const Tile&) { return {}; }

__device__ __forceinline__ void go_to(Window&, int) {}

#if !DIRECT
// Each thread gives the address of a piece: of eight lines, in four matrices.
__device__ __forceinline__ Rows rows_at(const Element* pixels, const Window&, int number) {
  int lane = threadIdx.x % 32, pixel = threadIdx.x / 32 * 16 + lane % 16;
  int column = number % INSTRUCTIONS * 2 * PIECE + lane / 16 * PIECE;
  Rows rows;
  read_matrices(rows.of, pixels + number / INSTRUCTIONS * TILE_P * LINE + place_in(pixel, column));
  return rows;
}
#endif
