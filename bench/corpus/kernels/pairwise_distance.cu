// Distances of all rows of a from all rows of b, a tile of 16 x 16 a block, 16 dimensions at once.
__global__ void pairwise_distance(const float* a, const float* b, float* d, int m, int n, int k) {
  __shared__ float u[16][17], v[16][17];
  int column = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
  int other = blockIdx.x * 16 + threadIdx.y;
  double sum = 0.0;
  for (int start = 0; start < k; start += 16) {
    int c = start + threadIdx.x;
    u[threadIdx.y][threadIdx.x] = row < m && c < k ? a[row * k + c] : 0.0f;
    v[threadIdx.y][threadIdx.x] = other < n && c < k ? b[other * k + c] : 0.0f;
    __syncthreads();
    for (int j = 0; j < 16; j++) {
      float apart = u[threadIdx.y][j] - v[threadIdx.x][j];
      sum += (double)apart * apart;
    }
    __syncthreads();  // the tiles have been read
  }
  if (row < m && column < n) d[row * n + column] = (float)sqrt(sum);
}
