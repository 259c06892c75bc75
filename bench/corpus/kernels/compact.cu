// Keeps the positive numbers of each segment of 128 in order, then zeros; and counts them.
__global__ void compact(const float* x, float* y, int* counts) {
  __shared__ int sums[4];
  int t = threadIdx.x, lane = t % 32, warp = t / 32;
  float v = x[blockIdx.x * 128 + t];
  unsigned votes = __ballot_sync(0xffffffff, v > 0.0f);
  if (lane == 0) sums[warp] = __popc(votes);
  __syncthreads();
  int before = 0, all = 0;
  for (int w = 0; w < 4; w++) {
    if (w < warp) before += sums[w];
    all += sums[w];
  }
  before += __popc(votes & ((1u << lane) - 1));
  if (v > 0.0f) y[blockIdx.x * 128 + before] = v;
  if (t >= all) y[blockIdx.x * 128 + t] = 0.0f;
  if (t == 0) counts[blockIdx.x] = all;
}
