// Histogram of 32 equal bins of [0, 1]; 1 belongs to the last bin, and what lies outside to none. Warps count apart.
#define BINS 32
#define WARPS 4

__global__ void range_histogram(const float* x, int* count, int width) {
  __shared__ int own[WARPS][BINS];
  const int t = threadIdx.x, warp = t / 32, lane = t % 32;
  own[warp][lane] = 0;
  __syncwarp();
  for (int i = t; i < width; i += blockDim.x) {
    const float v = x[(size_t)blockIdx.x * width + i];
    if (v < 0.0f || v > 1.0f) continue;
    atomicAdd(&own[warp][min((int)(v * BINS), BINS - 1)], 1);
  }
  __syncthreads();
  if (t < BINS) {
    int s = 0;
    for (int w = 0; w < WARPS; ++w) s += own[w][t];
    count[blockIdx.x * BINS + t] = s;
  }
}
