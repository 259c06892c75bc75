// Softmax over the context and the draft tokens that are a row's ancestors, of which it is one itself. A warp a row.
__global__ void tree_softmax(const float* score, const unsigned* ancestors, float* p, int rows, int context, int drafts) {
  const int row = blockIdx.x * blockDim.y + threadIdx.y, lane = threadIdx.x, n = context + drafts;
  if (row >= rows) return;
  const unsigned bits = ancestors[row] | 1u << row % drafts;
  const float* s = score + row * n;
  float most = -INFINITY;
  for (int j = lane; j < n; j += 32)
    if (j < context || bits >> (j - context) & 1) most = fmaxf(most, s[j]);
  for (int o = 16; o > 0; o /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, o));
  float sum = 0.f;
  for (int j = lane; j < n; j += 32)
    if (j < context || bits >> (j - context) & 1) sum += expf(s[j] - most);
  for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(0xffffffff, sum, o);
  for (int j = lane; j < n; j += 32) {
    const bool seen = j < context || bits >> (j - context) & 1;
    p[row * n + j] = seen ? expf(s[j] - most) / sum : 0.f;
  }
}
