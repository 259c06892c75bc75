// Dropout with random numbers of Philox 4x32-10: a counter for each four elements. An element is kept
// where its word is less than the threshold.
__device__ uint4 philox(uint4 counter, uint2 key) {
  for (int round = 0; round < 10; round++) {
    unsigned high0 = __umulhi(0xD2511F53u, counter.x), low0 = 0xD2511F53u * counter.x;
    unsigned high1 = __umulhi(0xCD9E8D57u, counter.z), low1 = 0xCD9E8D57u * counter.z;
    counter = make_uint4(high1 ^ counter.y ^ key.x, low1, high0 ^ counter.w ^ key.y, low0);
    key.x += 0x9E3779B9u;
    key.y += 0xBB67AE85u;
  }
  return counter;
}

__global__ void philox_dropout(const float* x, float* y, unsigned seed_low, unsigned seed_high, unsigned offset,
                               unsigned threshold, float scale, int n) {
  int first = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
  if (first >= n) return;
  uint4 word = philox(make_uint4(first / 4 + offset, 0, 0, 0), make_uint2(seed_low, seed_high));
  unsigned words[4] = {word.x, word.y, word.z, word.w};
  for (int j = 0; j < 4 && first + j < n; j++) y[first + j] = words[j] < threshold ? x[first + j] * scale : 0.0f;
}
