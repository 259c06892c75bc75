// Causal attention of sequences of different lengths in queries and keys: the last query sees all keys. Queries that see
// none give zeros.
#define HEAD 16
#define MOST 40

__global__ void bottom_right(const float* q, const float* k, const float* v, const int* q_length, const int* k_length, float* out,
                             float scale) {
  __shared__ float score[MOST];
  const int i = blockIdx.x, b = blockIdx.y, t = threadIdx.x;
  const int nq = q_length[b], nk = k_length[b];
  float* row = out + ((size_t)b * MOST + i) * HEAD;
  const int seen = i < nq ? min(nk, i + 1 + nk - nq) : 0;
  if (seen <= 0) {
    if (t < HEAD) row[t] = 0.f;
    return;
  }
  const float* query = q + ((size_t)b * MOST + i) * HEAD;
  float most = -INFINITY;
  for (int j = t; j < seen; j += 32) {
    float s = 0.f;
    for (int c = 0; c < HEAD; ++c) s += query[c] * k[((size_t)b * MOST + j) * HEAD + c];
    score[j] = s * scale;
    most = fmaxf(most, score[j]);
  }
  for (int m = 16; m; m >>= 1) most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, m));
  float sum = 0.f;
  for (int j = t; j < seen; j += 32) sum += score[j] = expf(score[j] - most);
  for (int m = 16; m; m >>= 1) sum += __shfl_xor_sync(0xffffffff, sum, m);
  __syncwarp();
  if (t < HEAD) {
    float a = 0.f;
    for (int j = 0; j < seen; ++j) a += score[j] * v[((size_t)b * MOST + j) * HEAD + t];
    row[t] = a / sum;
  }
}
