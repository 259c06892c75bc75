// C = A B in single precision: a thread computes ROWS elements of a column of C.
__global__ void gemm_naive(const float* a, const float* b, float* c, int m, int n, int k) {
  int column = blockIdx.x * blockDim.x + threadIdx.x;
  int first = (blockIdx.y * blockDim.y + threadIdx.y) * ROWS;
  if (column >= n) return;
  float sums[ROWS] = {};
  for (int i = 0; i < k; ++i) {
    for (int r = 0; r < ROWS; ++r) {
      if (first + r < m) sums[r] += a[(first + r) * k + i] * b[i * n + column];
    }
  }
  for (int r = 0; r < ROWS; ++r) {
    if (first + r < m) c[(first + r) * n + column] = sums[r];
  }
}
