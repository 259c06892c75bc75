// Running sums that begin anew at each head, in rows of 256, a block a row.
__global__ void segment_sums(const int* x, const unsigned char* head, int* y) {
  __shared__ int sums[8], heads[8];
  int t = threadIdx.x, lane = t % 32, warp = t / 32, i = blockIdx.x * 256 + t;
  int sum = x[i], begun = head[i];
  for (int step = 1; step < 32; step *= 2) {
    int other = __shfl_up_sync(0xffffffff, sum, step);
    int other_begun = __shfl_up_sync(0xffffffff, begun, step);
    if (lane >= step) {
      if (!begun) sum += other;
      begun |= other_begun;
    }
  }
  if (lane == 31) {
    sums[warp] = sum;
    heads[warp] = begun;
  }
  __syncthreads();
  for (int w = warp - 1; w >= 0 && !begun; w--) {
    sum += sums[w];
    begun = heads[w];
  }
  y[i] = sum;
}
