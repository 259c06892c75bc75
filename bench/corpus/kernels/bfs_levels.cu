// Levels of a breadth-first search from node 0; each node has three edges. One block.
__global__ void bfs_levels(const int* to, int* level, int nodes) {
  __shared__ int queue[2][300];
  __shared__ int length[2];
  for (int v = threadIdx.x; v < nodes; v += blockDim.x) level[v] = v ? -1 : 0;
  if (threadIdx.x == 0) {
    queue[0][0] = 0;
    length[0] = 1;
    length[1] = 0;
  }
  __syncthreads();  // levels and queues are set
  int now = 0;
  for (int from = 0; length[from] > 0; from ^= 1, now++) {
    for (int i = threadIdx.x; i < length[from]; i += blockDim.x) {
      int v = queue[from][i];
      for (int k = 0; k < 3; k++) {
        int w = to[3 * v + k];
        if (atomicCAS(&level[w], -1, now + 1) == -1) queue[from ^ 1][atomicAdd(&length[from ^ 1], 1)] = w;
      }
    }
    __syncthreads();  // the next queue is complete
    if (threadIdx.x == 0) length[from] = 0;
    __syncthreads();  // the former queue is empty
  }
}
