// The nearest of 500 points to each query, the first one of equally near ones; a warp a query.
__global__ void nearest(const int* points, const int* queries, int* y, int n, int count) {
  int q = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (q >= count) return;
  int a = queries[2 * q], b = queries[2 * q + 1], least = 2147483647, index = n;
  for (int i = lane; i < n; i += 32) {
    int u = points[2 * i] - a, v = points[2 * i + 1] - b, d = u * u + v * v;
    if (d < least) {
      least = d;
      index = i;
    }
  }
  for (int step = 16; step > 0; step /= 2) {
    int d = __shfl_down_sync(0xffffffff, least, step), i = __shfl_down_sync(0xffffffff, index, step);
    if (d < least || (d == least && i < index)) {
      least = d;
      index = i;
    }
  }
  if (lane == 0) y[q] = index;
}
