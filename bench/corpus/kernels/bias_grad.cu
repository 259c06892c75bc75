#include <cuda_bf16.h>

// Sums of the columns of a gradient in bfloat16, a block for 32 columns with eight rows at once.
__global__ void bias_grad(const __nv_bfloat16* dy, float* db, int rows, int columns) {
  __shared__ float parts[8][32];
  int column = blockIdx.x * 32 + threadIdx.x;
  float sum = 0.0f;
  if (column < columns)
    for (int r = threadIdx.y; r < rows; r += 8)
      sum += __bfloat162float(dy[(size_t)r * columns + column]);
  parts[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  for (int half = 4; half > 0; half /= 2) {
    if (threadIdx.y < half) parts[threadIdx.y][threadIdx.x] += parts[threadIdx.y + half][threadIdx.x];
    __syncthreads();
  }
  if (threadIdx.y == 0 && column < columns) db[column] = parts[0][threadIdx.x];
}
