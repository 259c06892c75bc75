// Picks places of each row with probabilities in proportion to weights, by a given word for each pick.
__global__ void weighted_pick(const unsigned char* weights, const unsigned* words, int* picks, int columns,
                              int count) {
  __shared__ unsigned sums[256];
  int t = threadIdx.x;
  sums[t] = t < columns ? weights[blockIdx.x * columns + t] : 0;
  __syncthreads();
  for (int step = 1; step < 256; step *= 2) {
    unsigned before = t >= step ? sums[t - step] : 0;
    __syncthreads();
    sums[t] += before;
    __syncthreads();
  }
  if (t >= count) return;
  unsigned total = sums[columns - 1];
  unsigned place = (unsigned)((unsigned long long)words[blockIdx.x * count + t] * total >> 32);
  int low = 0, high = columns - 1;
  while (low < high) {
    int middle = (low + high) / 2;
    if (sums[middle] > place) high = middle;
    else low = middle + 1;
  }
  picks[blockIdx.x * count + t] = low;
}
