// Transposes matrices into rows of 40 of which the last seven stay as they are.
__global__ void padded_transpose(const float* x, float* y, int rows, int columns, int pitch) {
  __shared__ float tile[32][33];
  const int b = blockIdx.z, r0 = blockIdx.y * 32, c0 = blockIdx.x * 32;
  for (int j = threadIdx.y; j < 32; j += blockDim.y)
    if (r0 + j < rows && c0 + threadIdx.x < columns) tile[j][threadIdx.x] = x[(b * rows + r0 + j) * columns + c0 + threadIdx.x];
  __syncthreads();
  for (int j = threadIdx.y; j < 32; j += blockDim.y)
    if (c0 + j < columns && r0 + threadIdx.x < rows) y[(b * columns + c0 + j) * pitch + r0 + threadIdx.x] = tile[threadIdx.x][j];
}
