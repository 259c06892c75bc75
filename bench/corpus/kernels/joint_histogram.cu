// Histogram of pairs of numbers below 16, by counters of each block.
__global__ void clear(unsigned* h) { h[threadIdx.x] = 0; }

__global__ void joint_histogram(const unsigned char* a, const unsigned char* b, unsigned* h, int n) {
  __shared__ unsigned own[256];
  for (int i = threadIdx.x; i < 256; i += blockDim.x) own[i] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&own[a[i] * 16 + b[i]], 1u);
  __syncthreads();
  for (int i = threadIdx.x; i < 256; i += blockDim.x) atomicAdd(&h[i], own[i]);
}
