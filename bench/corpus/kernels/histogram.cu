// Counts bytes in bins of four, with a histogram of each block in shared memory.
__global__ void clear(int* counts) { counts[threadIdx.x] = 0; }

__global__ void histogram(const unsigned char* x, int* counts, int n) {
  __shared__ int own[64];
  if (threadIdx.x < 64) own[threadIdx.x] = 0;
  __syncthreads();  // all bins are clear
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    atomicAdd(&own[x[i] / 4], 1);
  __syncthreads();  // all are counted
  if (threadIdx.x < 64) atomicAdd(&counts[threadIdx.x], own[threadIdx.x]);
}
