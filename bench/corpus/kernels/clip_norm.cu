// Scales a gradient so that its length is at most a limit: parts of the sum of squares, and then
// the scaling.
__device__ float block_sum(float v) {
  __shared__ float parts[8];
  for (int step = 16; step > 0; step /= 2) v += __shfl_down_sync(0xffffffff, v, step);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
  __syncthreads();
  v = 0.0f;
  for (int w = 0; w < blockDim.x / 32; w++) v += parts[w];
  return v;
}

__global__ void squares(const float* g, float* part, int n) {
  float sum = 0.0f;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    sum += g[i] * g[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) part[blockIdx.x] = sum;
}

__global__ void scale(const float* g, const float* part, float* y, int n, int blocks,
                      float limit) {
  float sum = 0.0f;
  for (int b = threadIdx.x; b < blocks; b += blockDim.x) sum += part[b];
  float norm = sqrtf(block_sum(sum));
  float factor = norm > limit ? limit / norm : 1.0f;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    y[i] = g[i] * factor;
}
