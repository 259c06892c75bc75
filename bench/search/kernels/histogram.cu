// How often each of BINS values occurs, by atomic additions to global memory.
__global__ void histogram(const int* x, int* counts, int n) {
  int first = (blockIdx.x * blockDim.x + threadIdx.x) * ITEMS;
  for (int i = first; i < first + ITEMS && i < n; ++i) atomicAdd(&counts[x[i]], 1);
}
