// Bytes that zigzag varints of 64-bit numbers take, and where each begins within its row of 64.
__global__ void varint_sizes(const long long* x, int* begin, int* total) {
  __shared__ int first_half;
  const int t = threadIdx.x, lane = t % 32;
  const long long v = x[blockIdx.x * 64 + t];
  const unsigned long long z = (unsigned long long)v << 1 ^ (unsigned long long)(v >> 63);
  const int size = (70 - __clzll(z | 1)) / 7;
  int sum = size;
  for (int s = 1; s < 32; s *= 2) {
    const int other = __shfl_up_sync(0xffffffff, sum, s);
    if (lane >= s) sum += other;
  }
  if (t == 31) first_half = sum;
  __syncthreads();
  if (t >= 32) sum += first_half;
  begin[blockIdx.x * 64 + t] = sum - size;
  if (t == 63) total[blockIdx.x] = sum;
}
