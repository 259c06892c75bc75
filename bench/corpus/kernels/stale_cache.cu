// Appends keys and values to a cache in pages, and attends to them. Pages have room for more than was written.
#define HEAD 32
#define PAGE 8

__global__ void append(const float* k, const float* v, const int* length, float* keys, float* values, int most) {
  const int sequence = blockIdx.y, t = blockIdx.x, c = threadIdx.x;
  if (t >= length[sequence]) return;
  const int page = (t / PAGE) * gridDim.y + sequence;
  const size_t from = ((size_t)sequence * most + t) * HEAD + c, to = ((size_t)page * PAGE + t % PAGE) * HEAD + c;
  keys[to] = k[from];
  values[to] = v[from];
}

__global__ void stale_cache(const float* q, const float* keys, const float* values, const int* length, float* out,
                            int sequences, float scale) {
  const int sequence = blockIdx.x, lane = threadIdx.x, n = length[sequence];
  const float query = q[sequence * HEAD + lane] * scale;
  float most = -INFINITY, sum = 0.f, acc = 0.f;
  for (int first = 0; first < n; first += PAGE) {
    const size_t base = (size_t)(first / PAGE * sequences + sequence) * PAGE;
    float score[PAGE], next = most;
    for (int j = 0; j < PAGE; ++j) {
      float s = first + j < n ? query * keys[(base + j) * HEAD + lane] : 0.f;
      for (int m = 16; m; m >>= 1) s += __shfl_xor_sync(0xffffffff, s, m);
      score[j] = first + j < n ? s : -INFINITY;
      next = fmaxf(next, score[j]);
    }
    const float factor = expf(most - next);
    sum *= factor;
    acc *= factor;
    for (int j = 0; j < PAGE; ++j) {
      const float w = expf(score[j] - next);
      sum += w;
      acc += first + j < n ? w * values[(base + j) * HEAD + lane] : 0.f;
    }
    most = next;
  }
  out[sequence * HEAD + lane] = acc / sum;
}
