// Nucleus sampling's mask: tokens are kept in order of descending weight (of equal ones the lower first)
// while what comes before is less than nine tenths of all. The heaviest is always kept. A block a row.
__global__ void nucleus(const int* weight, bool* keep, int n) {
  __shared__ int own[64];
  int row = blockIdx.x, i = threadIdx.x;
  own[i] = i < n ? weight[row * n + i] : 0;
  __syncthreads();
  int all = 0, ahead = 0, rank = 0;
  for (int j = 0; j < n; j++) {
    all += own[j];
    if (own[j] > own[i] || (own[j] == own[i] && j < i)) {
      ahead += own[j];
      rank++;
    }
  }
  if (i < n) keep[row * n + i] = rank == 0 || 10 * ahead < 9 * all;
}
