// Scores of queries and keys within a window of positions, -10000 elsewhere; several heads of queries
// share one of keys: a tile of 16 by 16 positions a block.
__global__ void window_scores(const float* q, const float* k, float* s, int heads, int key_heads,
                              int length, int window, float scale) {
  const int depth = 24;
  __shared__ float queries[16][depth + 1], keys[16][depth + 1];
  int head = blockIdx.z, from = head / (heads / key_heads);
  int t = threadIdx.y * 16 + threadIdx.x;
  for (int e = t; e < 16 * depth; e += 256) {
    int r = e / depth, c = e % depth;
    int i = blockIdx.y * 16 + r, j = blockIdx.x * 16 + r;
    queries[r][c] = i < length ? q[((size_t)head * length + i) * depth + c] : 0.0f;
    keys[r][c] = j < length ? k[((size_t)from * length + j) * depth + c] : 0.0f;
  }
  __syncthreads();
  int i = blockIdx.y * 16 + threadIdx.y, j = blockIdx.x * 16 + threadIdx.x;
  if (i >= length || j >= length) return;
  float sum = 0.0f;
  for (int c = 0; c < depth; c++) sum += queries[threadIdx.y][c] * keys[threadIdx.x][c];
  bool shown = j <= i && i - j < window;
  s[((size_t)head * length + i) * length + j] = shown ? sum * scale : -10000.0f;
}
