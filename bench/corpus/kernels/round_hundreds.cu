// Rounds 64-bit decimals to hundreds, half away from zero, and drops the two digits.
__global__ void round_hundreds(const long long* x, long long* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const long long v = x[i], q = v / 100, r = v % 100;
  y[i] = q + (r >= 50) - (r <= -50);
}
