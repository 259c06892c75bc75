// Particles in cells of half a unit of a periodic box of eight units: counts of cells.
#define CELLS 16

__global__ void clear(int* count) { count[threadIdx.x] = 0; }

__global__ void cell_counts(const float* x, int* count, int* cell_of, int n) {
  __shared__ int own[CELLS];
  if (threadIdx.x < CELLS) own[threadIdx.x] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const int cell = (int)floorf(x[i] * 2.0f) & (CELLS - 1);
    cell_of[i] = cell;
    atomicAdd(&own[cell], 1);
  }
  __syncthreads();
  if (threadIdx.x < CELLS) atomicAdd(&count[threadIdx.x], own[threadIdx.x]);
}
