// The rank of each number among its group of eight, equal ones by their order.
__global__ void group_ranks(const int* x, int* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, own = threadIdx.x % 8;
  int v = i < n ? x[i] : 0, rank = 0;
  for (int k = 0; k < 8; k++) {
    int other = __shfl_sync(0xffffffff, v, k, 8);
    rank += other < v || (other == v && k < own);
  }
  if (i < n) y[i] = rank;
}
