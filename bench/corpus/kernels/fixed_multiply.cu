// Products of numbers with 16 bits after the point, rounded to the nearest, halves up, and kept in range.
__global__ void fixed_multiply(const int* a, const int* b, int* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  long long p = ((long long)a[i] * b[i] + 32768) >> 16;
  y[i] = (int)max(-2147483648ll, min(2147483647ll, p));
}
