// A depthwise convolution: each plane of the output depends on one plane of the input.
//
// Besides those of window.cu, the constants of this text are:
//   PLANES             of the output, in all images
//   CHANNELS           of the output
//   MULTIPLIER         planes of the output that depend on the same plane of the input
//   READ_FIRST         whether a thread reads everything before its first product
//
// Such a layer has so few products that a card can only be limited by memory. Batches of one image
// fit into the L2, and take little longer than the launch of a kernel: what counts is that all blocks
// run at once, and that a thread does little before and after it waits for memory.

extern "C" __global__ void __launch_bounds__(THREADS)
depthwise(const float* __restrict__ data, const float* __restrict__ weight,
          float* __restrict__ output) {
  int plane = blockIdx.x * THREADS_Z + threadIdx.z;
  Tile tile;
  if ((PLANES % THREADS_Z != 0 && plane >= PLANES) || !tile.exists) return;
  Window window;
  window.read(data + plane / MULTIPLIER * (H * W), tile);
  float weights[TAPS];
#pragma unroll
  for (int tap = 0; tap < TAPS; ++tap) {
    weights[tap] = weight[(PLANES == CHANNELS ? plane : plane % CHANNELS) * TAPS + tap];
  }
  Sums sums;
  sums.clear();
  // To save registers, ptxas moves loads to where their results are needed, where the thread waits
  // again. It does not move them into a loop: this one runs once, which ptxas does not know.
  int times = READ_FIRST ? blockDim.x - (THREADS_X - 1) : 1;
#pragma unroll 1
  for (int i = 0; i < times; ++i) {
#pragma unroll
    for (int tap = 0; tap < TAPS; ++tap) sums.add(window, tap / KW, tap % KW, weights[tap]);
  }
  sums.write(output + plane * (OH * OW), tile);
}
