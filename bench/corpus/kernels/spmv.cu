// A sparse matrix with four entries a row, in an unordered list of columns, times a vector.
__global__ void spmv(const float* value, const int* column, const float* x, float* y, int rows) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  float sum = 0.0f;
  for (int e = 0; e < 4; e++) sum += value[4 * row + e] * x[column[4 * row + e]];
  y[row] = sum;
}
