// Precedes each candidate: where a thread's element of C = A B is, and its value.
struct Place {
  int row, column, at;
  bool inside;
};

__device__ Place place(int m, int n) {
  int column = blockIdx.x * blockDim.x + threadIdx.x;
  int row = blockIdx.y * blockDim.y + threadIdx.y;
  return {row, column, row * n + column, row < m && column < n};
}

__device__ float element(const float* a, const float* b, Place p, int n, int k) {
  float sum = 0.0f;
  for (int i = 0; i < k; ++i) sum += a[p.row * k + i] * b[i * n + p.column];
  return sum;
}
