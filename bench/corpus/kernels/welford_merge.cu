// Mean and variance of rows: eight elements a lane, merged with their numbers, which may be zero. A warp a row.
__global__ void welford_merge(const float* x, float* mean, float* variance, int n) {
  const int lane = threadIdx.x, row = blockIdx.x;
  float count = 0.f, m = 0.f, s = 0.f;
  for (int i = 8 * lane; i < min(8 * lane + 8, n); ++i) {
    const float v = x[row * n + i], d = v - m;
    count += 1.f;
    m += d / count;
    s += d * (v - m);
  }
  for (int o = 16; o > 0; o /= 2) {
    const float c2 = __shfl_down_sync(0xffffffff, count, o), m2 = __shfl_down_sync(0xffffffff, m, o), s2 = __shfl_down_sync(0xffffffff, s, o);
    if (c2 > 0.f) {
      const float c = count + c2, d = m2 - m;
      m += d * c2 / c;
      s += s2 + d * d * count * c2 / c;
      count = c;
    }
  }
  if (lane == 0) {
    mean[row] = m;
    variance[row] = s / count;
  }
}
