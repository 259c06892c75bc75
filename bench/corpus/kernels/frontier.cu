// Collects the elements above a threshold in a queue, a warp taking places for all of its lanes at once;
// a second launch works on what is in the queue.
__global__ void collect(const int* x, int* queue, unsigned* count, int n, int threshold) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    if (x[i] > threshold) {
      const unsigned active = __activemask();
      const int lane = threadIdx.x & 31, leader = __ffs(active) - 1;
      unsigned base = 0;
      if (lane == leader) base = atomicAdd(count, __popc(active));
      base = __shfl_sync(active, base, leader);
      queue[base + __popc(active & ((1u << lane) - 1))] = i;
    }
  }
}

__global__ void clear(int* y, unsigned* count, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 0;
  if (i == 0) *count = 0;
}

__global__ void work(const int* x, const int* queue, const unsigned* count, int* y, unsigned* found, int n) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < *count) y[queue[i]] = __popc(x[queue[i]]) + 1;
  if (i == 0) *found = *count;
}
