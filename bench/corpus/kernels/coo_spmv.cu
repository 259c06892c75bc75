// Product of a sparse matrix in coordinate format, in any order and with repeated places, and a vector.
__global__ void zero(float* y, int rows) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < rows) y[i] = 0.0f;
}

__global__ void coo_spmv(const int* row, const int* column, const float* value, const float* x, float* y, int count) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    atomicAdd(&y[row[i]], value[i] * x[column[i]]);
}
