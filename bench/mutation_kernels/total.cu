// The sum of all elements: each block adds up its part, the last launch adds up the blocks'.
__device__ float block_sum(float value, float* parts) {
  int t = threadIdx.x;
  parts[t] = value;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (t < half) parts[t] += parts[t + half];
    __syncthreads();
  }
  return parts[0];
}

__global__ void partial(const float* x, float* sums, int n) {
  __shared__ float parts[128];
  float value = 0.0f;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    value += x[i];
  value = block_sum(value, parts);
  if (threadIdx.x == 0) sums[blockIdx.x] = value;
}

__global__ void total(const float* sums, float* y) {
  __shared__ float parts[16];
  float value = block_sum(sums[threadIdx.x], parts);
  if (threadIdx.x == 0) y[0] = value;
}
