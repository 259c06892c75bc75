#include <cuda_fp16.h>

// The SiLU of the left half of each row times its right half, an element a thread.
__global__ void swiglu(const __half* x, __half* y, int rows, int width) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= rows * width) return;
  int row = i / width, c = i % width;
  const __half* in = x + (size_t)row * 2 * width;
  float gate = __half2float(in[c]), up = __half2float(in[c + width]);
  float power = expf(-fabsf(gate));
  float share = gate >= 0.0f ? 1.0f / (1.0f + power) : power / (1.0f + power);
  y[i] = __float2half(gate * share * up);
}
