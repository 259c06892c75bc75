// C = A B by tiles of 16 x 16.
__global__ void gemm(const float* a, const float* b, float* c, int m, int n, int k) {
  __shared__ float as[16][16], bs[16][16];
  int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
  float sum = 0.0f;
  for (int k0 = 0; k0 < k; k0 += 16) {
    as[threadIdx.y][threadIdx.x] =
        row < m && k0 + threadIdx.x < k ? a[row * k + k0 + threadIdx.x] : 0.0f;
    bs[threadIdx.y][threadIdx.x] =
        k0 + threadIdx.y < k && column < n ? b[(k0 + threadIdx.y) * n + column] : 0.0f;
    __syncthreads();  // the tiles are there
    for (int i = 0; i < 16; i++) sum += as[threadIdx.y][i] * bs[i][threadIdx.x];
    __syncthreads();  // the tiles have been read
  }
  if (row < m && column < n) c[row * n + column] = sum;
}
