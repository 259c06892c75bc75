// Fraction in [1/2, 1) and exponent of two of each number; zero has neither.
__global__ void split_exponent(const float* x, float* fraction, int* exponent, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int e;
  fraction[i] = frexpf(x[i], &e);
  exponent[i] = e;
}
