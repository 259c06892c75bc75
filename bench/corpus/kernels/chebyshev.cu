// Sums of Chebyshev polynomials with given coefficients, from the highest down, in double precision.
__global__ void chebyshev(const float* x, const float* coefficients, float* y, int n, int terms) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  double at = x[i], last = 0.0, before = 0.0;
  for (int k = terms - 1; k >= 1; k--) {
    double next = 2.0 * at * last - before + coefficients[k];
    before = last;
    last = next;
  }
  y[i] = (float)(at * last - before + coefficients[0]);
}
