// Sums of columns: tiles of four rows by 64 columns come asynchronously, two ahead of their use.
__device__ void bring(float* to, const float* from) {
  unsigned at = (unsigned)__cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}

__global__ void column_pipeline(const float* x, float* y, int rows, int columns) {
  __shared__ alignas(16) float stage[3][4][64];
  int t = threadIdx.x, r = t / 16, c = t % 16 * 4, left = blockIdx.x * 64;
  int tiles = (rows + 3) / 4;
  float sum = 0.0f;
  for (int k = 0; k < tiles + 2; k++) {
    if (k < tiles && 4 * k + r < rows) bring(&stage[k % 3][r][c], x + (4 * k + r) * columns + left + c);
    asm volatile("cp.async.commit_group;" ::: "memory");
    if (k < 2) continue;
    asm volatile("cp.async.wait_group 2;" ::: "memory");
    __syncthreads();  // the tile has arrived
    int tile = k - 2;
    for (int i = 0; i < 4 && 4 * tile + i < rows; i++) sum += stage[tile % 3][i][t];
    __syncthreads();  // the tile has been read
  }
  y[left + t] = sum;
}
