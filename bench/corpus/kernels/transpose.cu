// Transposes a matrix by tiles of 32 x 32, with blocks of 32 x 8 threads.
__global__ void transpose(const float* x, float* y, int rows, int columns) {
  __shared__ float tile[32][33];
  int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 32 + threadIdx.y;
  for (int i = 0; i < 32; i += 8)
    if (r + i < rows && c < columns) tile[threadIdx.y + i][threadIdx.x] = x[(r + i) * columns + c];
  __syncthreads();
  c = blockIdx.x * 32 + threadIdx.y;
  r = blockIdx.y * 32 + threadIdx.x;
  for (int i = 0; i < 32; i += 8)
    if (c + i < columns && r < rows) y[(c + i) * rows + r] = tile[threadIdx.x][threadIdx.y + i];
}
