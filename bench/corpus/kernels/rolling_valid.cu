// Means of windows of seven numbers that end at each; a mask of bits says which numbers are there, and which means:
// those of at least three. Bits after the last are zero.
__global__ void rolling_valid(const float* x, const unsigned* there, float* y, unsigned* valid, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  float sum = 0.f;
  int count = 0;
  if (i < n)
    for (int k = max(0, i - 6); k <= i; ++k)
      if (there[k / 32] >> (k % 32) & 1) {
        sum += x[k];
        ++count;
      }
  const unsigned bits = __ballot_sync(0xffffffff, count >= 3);
  if (i < n) y[i] = count >= 3 ? sum / count : 0.f;
  if (i < n && i % 32 == 0) valid[i / 32] = bits;
}
