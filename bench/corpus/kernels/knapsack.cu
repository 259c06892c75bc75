// The largest value of items that fit a knapsack, each at most once; a block an instance.
__global__ void knapsack(const int* weight, const int* value, int* y, int items, int room) {
  __shared__ int best[2][256];
  int t = threadIdx.x, from = 0, own = 0;
  best[0][t] = 0;
  __syncthreads();  // the empty knapsack is there
  for (int i = blockIdx.x * items; i < blockIdx.x * items + items; i++) {
    if (t >= weight[i]) own = max(own, best[from][t - weight[i]] + value[i]);
    from ^= 1;
    best[from][t] = own;
    __syncthreads();  // the item is done
  }
  if (t == room) y[blockIdx.x] = own;
}
