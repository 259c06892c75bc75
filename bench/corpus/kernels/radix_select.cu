// The kth largest number of each row, a digit of eight bits after another.
__device__ unsigned ordered(float f) {
  const unsigned b = __float_as_uint(f);
  return b >> 31 ? ~b : b | 0x80000000u;
}

__global__ void radix_select(const float* x, float* y, int n, int k) {
  __shared__ unsigned count[256], prefix;
  const int t = threadIdx.x;
  const float* row = x + blockIdx.x * n;
  int left = k;
  if (t == 0) prefix = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = t; i < 256; i += blockDim.x) count[i] = 0;
    __syncthreads();
    const unsigned known = prefix;
    for (int i = t; i < n; i += blockDim.x) {
      const unsigned u = ordered(row[i]);
      if (shift == 24 || u >> (shift + 8) == known >> (shift + 8)) atomicAdd(&count[u >> shift & 255], 1u);
    }
    __syncthreads();
    if (t == 0) {
      int digit = 255;
      while (left > (int)count[digit]) left -= count[digit--];
      prefix = known | (unsigned)digit << shift;
    }
    __syncthreads();
  }
  if (t == 0) y[blockIdx.x] = __uint_as_float(prefix >> 31 ? prefix & 0x7fffffffu : ~prefix);
}
