// Products of 64-bit integers in full: the low and the high half.
__global__ void wide_product(const unsigned long long* a, const unsigned long long* b, unsigned long long* low,
                             unsigned long long* high, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  low[i] = a[i] * b[i];
  high[i] = __umul64hi(a[i], b[i]);
}
