// Doubles tiles of 256 numbers that are copied to shared memory asynchronously, two stages.
__device__ void bring(float* to, const float* from) {
  unsigned at = (unsigned)__cvta_generic_to_shared(to);
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
  asm volatile("cp.async.commit_group;" ::: "memory");
}

__global__ void copy_async(const float* x, float* y, int tiles) {
  __shared__ alignas(16) float stage[2][256];
  int t = threadIdx.x;
  bring(&stage[0][4 * t], x + blockIdx.x * 256 + 4 * t);
  int turn = 0;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x, turn++) {
    int next = tile + gridDim.x;
    if (next < tiles) {
      bring(&stage[(turn + 1) % 2][4 * t], x + next * 256 + 4 * t);
      asm volatile("cp.async.wait_group 1;" ::: "memory");
    } else {
      asm volatile("cp.async.wait_group 0;" ::: "memory");
    }
    __syncthreads();  // all parts have arrived
    for (int i = t; i < 256; i += 64) y[tile * 256 + i] = 2.0f * stage[turn % 2][255 - i];
    __syncthreads();  // all parts have been read
  }
}
