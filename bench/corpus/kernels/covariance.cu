// Covariance of two columns of each row of pairs, by means and products that threads merge; divided by the number less one.
struct Moments { float n, mx, my, c; };

__device__ Moments merge(Moments a, Moments b) {
  const float n = a.n + b.n;
  if (n == 0.f) return a;
  const float dx = b.mx - a.mx, dy = b.my - a.my, share = b.n / n;
  return {n, a.mx + dx * share, a.my + dy * share, a.c + b.c + dx * dy * a.n * share};
}

__global__ void covariance(const float2* p, float* y, int pairs) {
  const float2* row = p + (size_t)blockIdx.x * pairs;
  Moments m = {0.f, 0.f, 0.f, 0.f};
  for (int i = threadIdx.x; i < pairs; i += 32) {
    const float2 v = row[i];
    m.n += 1.f;
    const float dx = v.x - m.mx;
    m.mx += dx / m.n;
    m.my += (v.y - m.my) / m.n;
    m.c += dx * (v.y - m.my);
  }
  for (int s = 16; s; s >>= 1) {
    Moments other = {__shfl_down_sync(0xffffffff, m.n, s), __shfl_down_sync(0xffffffff, m.mx, s),
                     __shfl_down_sync(0xffffffff, m.my, s), __shfl_down_sync(0xffffffff, m.c, s)};
    m = merge(m, other);
  }
  if (threadIdx.x == 0) y[blockIdx.x] = m.c / (m.n - 1.f);
}
