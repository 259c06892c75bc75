// Product of a sparse matrix in slices of 32 rows, each as wide as its longest row, and a vector.
__global__ void begins(const int* width, int* begin, int slices) {
  int sum = 0;
  for (int s = 0; s < slices; ++s) {
    begin[s] = sum;
    sum += width[s];
  }
}

__global__ void sell_spmv(const int* width, const int* begin, const int* column, const float* value, const float* x, float* y, int rows) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const int slice = row / 32, lane = row % 32;
  float sum = 0.f;
  for (int k = 0; k < width[slice]; ++k) {
    const int at = (begin[slice] + k) * 32 + lane;
    sum += value[at] * x[column[at]];
  }
  y[row] = sum;
}
