// Products of rows of two matrices at given pairs of rows, times a value each: a warp a pair.
__global__ void sddmm(const float* a, const float* b, const int* row, const int* column, const float* value, float* y,
                      int pairs, int depth) {
  int pair = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (pair >= pairs) return;
  const float* left = a + row[pair] * depth;
  const float* right = b + column[pair] * depth;
  float sum = 0.0f;
  for (int k = lane; k < depth; k += 32) sum += left[k] * right[k];
  for (int step = 16; step > 0; step >>= 1) sum += __shfl_down_sync(0xffffffffu, sum, step);
  if (lane == 0) y[pair] = sum * value[pair];
}
