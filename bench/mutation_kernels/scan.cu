// Inclusive sums of each segment of 128 elements.
__global__ void scan(const float* x, float* y) {
  __shared__ float sums[2][128];
  int t = threadIdx.x, from = 0;
  sums[0][t] = x[blockIdx.x * 128 + t];
  __syncthreads();
  for (int distance = 1; distance < 128; distance *= 2) {
    float value = sums[from][t];
    if (t >= distance) value += sums[from][t - distance];
    from = 1 - from;
    sums[from][t] = value;
    __syncthreads();
  }
  y[blockIdx.x * 128 + t] = sums[from][t];
}
