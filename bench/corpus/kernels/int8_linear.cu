// A product of matrices of eight-bit integers, four at a time, and scales of rows and columns.
__global__ void int8_linear(const signed char* a, const signed char* b, const float* scale_a,
                            const float* scale_b, float* y, int m, int n, int k) {
  int column = blockIdx.x * blockDim.x + threadIdx.x;
  int row = blockIdx.y * blockDim.y + threadIdx.y;
  if (row >= m || column >= n) return;
  const int* u = reinterpret_cast<const int*>(a + (size_t)row * k);
  const int* v = reinterpret_cast<const int*>(b + (size_t)column * k);
  int sum = 0;
  for (int j = 0; j < k / 4; j++) sum = __dp4a(u[j], v[j], sum);
  y[row * n + column] = sum * scale_a[row] * scale_b[column];
}
