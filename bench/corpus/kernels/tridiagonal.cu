// Solves systems of 64 equations with three diagonals by cyclic reduction, a block a system.
__global__ void tridiagonal(const float* a, const float* c, const float* d, float* x, float middle) {
  __shared__ float low[64], mid[64], up[64], right[64];
  int t = threadIdx.x, i = blockIdx.x * 64 + t;
  float l = t > 0 ? a[i] : 0.0f, m = middle, u = t < 63 ? c[i] : 0.0f, r = d[i];
  for (int step = 1; step < 64; step *= 2) {
    low[t] = l;
    mid[t] = m;
    up[t] = u;
    right[t] = r;
    __syncthreads();  // the equations are there
    float next_l = 0.0f, next_u = 0.0f;
    if (t >= step) {
      float p = l / mid[t - step];
      m -= p * up[t - step];
      r -= p * right[t - step];
      next_l = -p * low[t - step];
    }
    if (t + step < 64) {
      float q = u / mid[t + step];
      m -= q * low[t + step];
      r -= q * right[t + step];
      next_u = -q * up[t + step];
    }
    l = next_l;
    u = next_u;
    __syncthreads();  // the equations have been read
  }
  x[i] = r / m;
}
