// A step of beam search: of all beams and tokens the ones with the lowest total cost, in order; of
// equal ones those of the lower beam, then token. A block a sentence.
__global__ void beam_step(const int* cost, const int* so_far, int* total, int* parent, int* token, int beams, int vocabulary) {
  __shared__ unsigned long long best[4];
  int sentence = blockIdx.x, t = threadIdx.x;
  unsigned long long last = 0;
  for (int round = 0; round < beams; round++) {
    unsigned long long own = ~0ull;
    for (int i = t; i < beams * vocabulary; i += blockDim.x) {
      int sum = so_far[sentence * beams + i / vocabulary] + cost[sentence * beams * vocabulary + i];
      unsigned long long key = ((unsigned long long)sum << 32) | (unsigned)(i + 1);
      if (key > last && key < own) own = key;
    }
    for (int step = 16; step > 0; step /= 2) {
      unsigned long long other = __shfl_xor_sync(0xffffffffu, own, step);
      if (other < own) own = other;
    }
    if (t % 32 == 0) best[t / 32] = own;
    __syncthreads();
    for (int w = 0; w < blockDim.x / 32; w++)
      if (best[w] < own) own = best[w];
    last = own;
    if (t == 0) {
      int i = (int)(own & 0xffffffffu) - 1;
      total[sentence * beams + round] = (int)(own >> 32);
      parent[sentence * beams + round] = i / vocabulary;
      token[sentence * beams + round] = i % vocabulary;
    }
    __syncthreads();
  }
}
