// States of the generators s = a s + b with other numbers at each step, by composing steps in pairs of lines.
__global__ void affine_scan(const unsigned* a, const unsigned* b, unsigned* y, int n, unsigned seed) {
  __shared__ unsigned factor[2][128], summand[2][128];
  const int t = threadIdx.x, row = blockIdx.x;
  unsigned f = t < n ? a[row * n + t] : 1, s = t < n ? b[row * n + t] : 0;
  int line = 0;
  for (int o = 1; o < n; o *= 2) {
    factor[line][t] = f;
    summand[line][t] = s;
    __syncthreads();
    if (t >= o) {
      s += f * summand[line][t - o];
      f *= factor[line][t - o];
    }
    line ^= 1;
  }
  if (t < n) y[row * n + t] = f * seed + s;
}
