// A depthwise convolution: each plane of the output depends on one plane of the input.
//
// Besides those of window.cu, the constants of this text are:
//   PLANES             of the output, in all images
//   MULTIPLIER         planes of the output that depend on the same plane of the input
//   READ_FIRST         whether a thread reads everything before its first product
//
// Such a layer has so few products that a card can only be limited by memory. Batches of one image
// fit into the L2, and take little longer than the launch of a kernel: what counts is that all blocks
// run at once, and that a thread does little before and after it waits for memory.

extern "C" __global__ void __launch_bounds__(THREADS)
depthwise(const Element* __restrict__ data, const Element* __restrict__ weight,
#if WITH_BIAS
          const Element* __restrict__ bias,
#endif
          Element* __restrict__ output) {
#if !WITH_BIAS
  const Element* bias = nullptr;
#endif
  int plane = blockIdx.x * THREADS_Z + thread_of_channel();
  Tile tile;
  if ((PLANES % THREADS_Z != 0 && plane >= PLANES) || !tile.exists) return;
  int image = PLANES == CO ? 0 : plane / CO, channel = PLANES == CO ? plane : plane % CO;
  Window window;
  window.read(data + input_plane(image, channel / MULTIPLIER), tile);
  float weights[TAPS];
#pragma unroll
  for (int tap = 0; tap < TAPS; ++tap) {
    weights[tap] = static_cast<float>(weight[channel * TAPS + tap]);
  }
  Sums sums;
  sums.clear();
  // To save registers, ptxas moves loads to where their results are needed, where the thread waits
  // again. It does not move them into a loop: this one runs once, which ptxas does not know.
  int times = READ_FIRST ? blockDim.y - (THREADS_Y - 1) : 1;
#pragma unroll 1
  for (int i = 0; i < times; ++i) {
#pragma unroll
    for (int tap = 0; tap < TAPS; ++tap) sums.add(window, tap / KW, tap % KW, weights[tap]);
  }
  sums.write(output + output_plane(image, channel), tile, bias + channel);
}
