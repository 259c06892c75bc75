#include <cuda_fp16.h>

// Root-mean-square normalization of rows in half precision, a block of 64 threads a row.
__global__ void rms_norm(const __half* x, const __half* gain, __half* y, int columns,
                         float epsilon) {
  __shared__ float parts[2];
  const __half* in = x + (size_t)blockIdx.x * columns;
  float squares = 0.0f;
  for (int c = threadIdx.x; c < columns; c += 64) {
    float v = __half2float(in[c]);
    squares += v * v;
  }
  for (int step = 16; step > 0; step /= 2)
    squares += __shfl_down_sync(0xffffffff, squares, step);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = squares;
  __syncthreads();
  float scale = rsqrtf((parts[0] + parts[1]) / columns + epsilon);
  for (int c = threadIdx.x; c < columns; c += 64)
    y[(size_t)blockIdx.x * columns + c] =
        __float2half(__half2float(in[c]) * scale * __half2float(gain[c]));
}
