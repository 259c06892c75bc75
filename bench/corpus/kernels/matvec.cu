#include <cuda_fp16.h>

// A matrix times a vector in half precision, added up in single, a warp a row.
__global__ void matvec(const __half* a, const __half* x, __half* y, int rows, int columns) {
  int row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  const __half2* pairs = reinterpret_cast<const __half2*>(a + row * columns);
  const __half2* by = reinterpret_cast<const __half2*>(x);
  float sum = 0.0f;
  for (int c = lane; c < columns / 2; c += 32) {
    float2 p = __half22float2(pairs[c]), q = __half22float2(by[c]);
    sum += p.x * q.x + p.y * q.y;
  }
  for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(0xffffffff, sum, step);
  if (lane == 0) y[row] = __float2half(sum);
}
