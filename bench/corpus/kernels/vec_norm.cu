// Lengths of rows, by vectors of four from the first aligned element on. A warp a row.
__global__ void vec_norm(const float* x, float* y, int n) {
  const int t = threadIdx.x;
  const float* p = x + (size_t)blockIdx.x * n;
  const int head = min((int)(-(size_t)p / 4 % 4), n), fours = (n - head) / 4;
  float s = 0.f;
  if (t < head) s += p[t] * p[t];
  const float4* q = reinterpret_cast<const float4*>(p + head);
  for (int i = t; i < fours; i += 32) {
    const float4 v = q[i];
    s += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
  }
  for (int i = head + 4 * fours + t; i < n; i += 32) s += p[i] * p[i];
  for (int o = 16; o > 0; o /= 2) s += __shfl_down_sync(0xffffffff, s, o);
  if (t == 0) y[blockIdx.x] = sqrtf(s);
}
