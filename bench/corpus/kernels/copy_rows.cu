// Doubles rows of 256 numbers, a block a row.
__global__ void copy_rows(const float* x, float* y, int rows) {
  size_t i = (size_t)blockIdx.x * 256 + threadIdx.x;
  if (blockIdx.x < rows) y[i] = 2.0f * x[i];
}
