// Exclusive sums of rows, four numbers a thread, 512 at a time.
__global__ void vector_scan(const unsigned* x, unsigned* y, int n) {
  __shared__ unsigned sums[4];
  const int t = threadIdx.x, lane = t % 32, warp = t / 32;
  x += (size_t)blockIdx.x * n;
  y += (size_t)blockIdx.x * n;
  unsigned carry = 0;
  for (int first = 0; first < n; first += 512) {
    const int at = first + 4 * t;
    unsigned v[4], own = 0;
    for (int k = 0; k < 4; ++k) {
      v[k] = at + k < n ? x[at + k] : 0;
      own += v[k];
    }
    unsigned sum = own;
    for (int o = 1; o < 32; o *= 2) {
      const unsigned below = __shfl_up_sync(0xffffffff, sum, o);
      if (lane >= o) sum += below;
    }
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    unsigned before = carry + sum - own;
    for (int w = 0; w < warp; ++w) before += sums[w];
    for (int k = 0; k < 4 && at + k < n; ++k) {
      y[at + k] = before;
      before += v[k];
    }
    for (int w = 0; w < 4; ++w) carry += sums[w];
    __syncthreads();
  }
}
