// Walsh-Hadamard transforms of rows of 256 numbers: in warps, and then across the eight warps.
__global__ void hadamard(const int* x, int* y) {
  __shared__ int values[256];
  int t = threadIdx.x, lane = t % 32, warp = t / 32;
  int v = x[blockIdx.x * 256 + t];
  for (int step = 1; step < 32; step *= 2) {
    int other = __shfl_xor_sync(0xffffffff, v, step);
    v = lane & step ? other - v : other + v;
  }
  values[t] = v;
  __syncthreads();
  int sum = 0;
  for (int w = 0; w < 8; w++) sum += __popc(w & warp) & 1 ? -values[32 * w + lane] : values[32 * w + lane];
  y[blockIdx.x * 256 + t] = sum;
}
