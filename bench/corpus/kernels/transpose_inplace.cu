// Transposes square matrices where they are: a block exchanges a tile with its mirror image.
#define TILE 16

__global__ void transpose_inplace(float* a, int n) {
  __shared__ float upper[TILE][TILE + 1], lower[TILE][TILE + 1];
  if (blockIdx.y > blockIdx.x) return;
  float* m = a + (size_t)blockIdx.z * n * n;
  const int x = threadIdx.x, y = threadIdx.y;
  const int row = blockIdx.y * TILE, column = blockIdx.x * TILE;
  if (row + y < n && column + x < n) upper[y][x] = m[(row + y) * n + column + x];
  if (column + y < n && row + x < n) lower[y][x] = m[(column + y) * n + row + x];
  __syncthreads();
  if (row + y < n && column + x < n) m[(row + y) * n + column + x] = lower[x][y];
  if (column + y < n && row + x < n && row != column) m[(column + y) * n + row + x] = upper[x][y];
}
