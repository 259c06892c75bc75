// The largest sum of neighbouring elements of each row, of at least one; a block a row.
__global__ void max_subarray(const int* x, int* y, int columns) {
  __shared__ int sum[128], head[128], tail[128], best[128];
  int t = threadIdx.x, each = (columns + 127) / 128, least = -1000000000;
  int s = 0, h = least, e = least, b = least;
  for (int i = t * each; i < min(columns, t * each + each); i++) {
    int v = x[blockIdx.x * columns + i];
    s += v;
    h = max(h, s);
    e = max(e + v, v);
    b = max(b, e);
  }
  sum[t] = s;
  head[t] = h;
  tail[t] = e;
  best[t] = b;
  for (int step = 1; step < 128; step *= 2) {
    __syncthreads();  // parts are there
    if (t % (2 * step) == 0) {
      int o = t + step;
      best[t] = max(max(best[t], best[o]), tail[t] + head[o]);
      head[t] = max(head[t], sum[t] + head[o]);
      tail[t] = max(tail[o], sum[o] + tail[t]);
      sum[t] += sum[o];
    }
  }
  if (t == 0) y[blockIdx.x] = best[0];
}
