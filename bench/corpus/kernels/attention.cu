// Causal attention of one head, a thread a query, with a running maximum and sum.
__global__ void attention(const float* q, const float* k, const float* v, float* o, int length,
                          float scale) {
  __shared__ float keys[32][16], values[32][16];
  int query = blockIdx.x * 32 + threadIdx.x;
  float own[16], sums[16], largest = -INFINITY, sum = 0.0f;
  for (int d = 0; d < 16; d++) {
    own[d] = query < length ? q[query * 16 + d] * scale : 0.0f;
    sums[d] = 0.0f;
  }
  for (int first = 0; first < min(length, blockIdx.x * 32 + 32); first += 32) {
    for (int d = 0; d < 16; d++) {
      int key = first + threadIdx.x;
      keys[threadIdx.x][d] = key < length ? k[key * 16 + d] : 0.0f;
      values[threadIdx.x][d] = key < length ? v[key * 16 + d] : 0.0f;
    }
    __syncthreads();  // the tile is there
    for (int j = 0; j < 32; j++) {
      int key = first + j;
      if (key > query || key >= length) continue;
      float score = 0.0f;
      for (int d = 0; d < 16; d++) score += own[d] * keys[j][d];
      float next = fmaxf(largest, score);
      float old = expf(largest - next), weight = expf(score - next);
      sum = sum * old + weight;
      for (int d = 0; d < 16; d++) sums[d] = sums[d] * old + weight * values[j][d];
      largest = next;
    }
    __syncthreads();  // the tile has been read
  }
  if (query < length)
    for (int d = 0; d < 16; d++) o[query * 16 + d] = sums[d] / sum;
}
