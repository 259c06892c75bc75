// The sum of all elements in one launch: the last block to finish adds up the others' sums.
__device__ unsigned int done;

__global__ void total(const float* x, volatile float* sums, float* y, int n) {
  __shared__ float parts[128];
  __shared__ bool last;
  int t = threadIdx.x;
  float sum = 0.0f;
  for (int i = blockIdx.x * 128 + t; i < n; i += gridDim.x * 128) sum += x[i];
  parts[t] = sum;
  __syncthreads();
  for (int half = 64; half > 0; half /= 2) {
    if (t < half) parts[t] += parts[t + half];
    __syncthreads();
  }
  if (t == 0) {
    sums[blockIdx.x] = parts[0];
    __threadfence();
    last = atomicAdd(&done, 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && t == 0) {
    sum = 0.0f;
    for (int b = 0; b < gridDim.x; b++) sum += sums[b];
    y[0] = sum;
    done = 0;
  }
}
