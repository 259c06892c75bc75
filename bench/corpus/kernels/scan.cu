// Running sums within segments of 128, a block a segment.
__global__ void scan(const float* x, float* y) {
  __shared__ float parts[2][128];
  int t = threadIdx.x, from = 0;
  parts[0][t] = x[blockIdx.x * 128 + t];
  __syncthreads();  // all values are there
  for (int step = 1; step < 128; step *= 2) {
    float sum = parts[from][t];
    if (t >= step) sum += parts[from][t - step];
    from = 1 - from;
    parts[from][t] = sum;
    __syncthreads();  // a step is done
  }
  y[blockIdx.x * 128 + t] = parts[from][t];
}
