// Rows of 33 halves times a scale each, by pairs of the whole matrix, which may belong to two rows.
#include <cuda_fp16.h>

__global__ void half2_rows(const __half* x, const float* scale, __half* y, int rows, int columns) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x, n = rows * columns;
  if (2 * i + 1 < n) {
    const float2 v = __half22float2(reinterpret_cast<const __half2*>(x)[i]);
    const float a = v.x * scale[2 * i / columns], b = v.y * scale[(2 * i + 1) / columns];
    reinterpret_cast<__half2*>(y)[i] = __floats2half2_rn(a, b);
  } else if (2 * i < n) {
    y[2 * i] = __float2half(__half2float(x[2 * i]) * scale[2 * i / columns]);
  }
}
