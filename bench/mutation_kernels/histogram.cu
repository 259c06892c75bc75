__global__ void clear(int* counts) { counts[threadIdx.x] = 0; }

__global__ void histogram(const int* x, int* counts, int n) {
  __shared__ int own[64];
  for (int b = threadIdx.x; b < 64; b += blockDim.x) own[b] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    atomicAdd(&own[x[i] >> 1], 1);
  __syncthreads();
  for (int b = threadIdx.x; b < 64; b += blockDim.x) atomicAdd(&counts[b], own[b]);
}
