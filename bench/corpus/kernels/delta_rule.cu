// Linear attention by the delta rule: the state decays, forgets along the key, and takes in the value.
#define D 16

__global__ void delta_rule(const float* q, const float* k, const float* v, const float* beta, const float* decay, float* out,
                           int steps) {
  __shared__ float key[D], query[D];
  const int h = blockIdx.x, t = threadIdx.x;
  float state[D];
  for (int i = 0; i < D; ++i) state[i] = 0.f;
  for (int s = 0; s < steps; ++s) {
    const size_t at = ((size_t)h * steps + s) * D + t;
    key[t] = k[at];
    query[t] = q[at];
    __syncwarp(0xffff);
    const float a = decay[h * steps + s], b = beta[h * steps + s];
    float seen = 0.f;
    for (int i = 0; i < D; ++i) {
      state[i] *= a;
      seen += state[i] * key[i];
    }
    const float fresh = b * (v[at] - seen);
    float y = 0.f;
    for (int i = 0; i < D; ++i) {
      state[i] += fresh * key[i];
      y += state[i] * query[i];
    }
    out[at] = y;
    __syncwarp(0xffff);
  }
}
