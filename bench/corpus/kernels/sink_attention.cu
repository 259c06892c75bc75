// Attention of one query with a sink, whose logit takes part in the denominator only; keys are split among blocks,
// of which some have none. The second launch puts the parts together and adds the sink once.
#define HEAD 32
#define SPLIT 24

__global__ void parts(const float* q, const float* k, const float* v, const int* length, float* most, float* sum, float* acc,
                      int keys, int splits, float scale) {
  const int split = blockIdx.x, b = blockIdx.y, lane = threadIdx.x;
  const int first = split * SPLIT, last = min(first + SPLIT, length[b]);
  const float query = q[b * HEAD + lane] * scale;
  float m = -INFINITY, s = 0.f, a = 0.f;
  for (int t = first; t < last; ++t) {
    const size_t at = ((size_t)b * keys + t) * HEAD + lane;
    float score = query * k[at];
    for (int w = 16; w; w >>= 1) score += __shfl_xor_sync(0xffffffff, score, w);
    const float next = fmaxf(m, score), factor = expf(m - next), weight = expf(score - next);
    s = s * factor + weight;
    a = a * factor + weight * v[at];
    m = next;
  }
  const int part = b * splits + split;
  if (lane == 0) {
    most[part] = m;
    sum[part] = s;
  }
  acc[part * HEAD + lane] = a;
}

__global__ void sink_attention(const float* most, const float* sum, const float* acc, const float* sink, float* out, int splits) {
  const int b = blockIdx.x, lane = threadIdx.x;
  float m = sink[b];
  for (int i = 0; i < splits; ++i) m = fmaxf(m, most[b * splits + i]);
  float s = expf(sink[b] - m), a = 0.f;
  for (int i = 0; i < splits; ++i) {
    const float factor = expf(most[b * splits + i] - m);
    s += factor * sum[b * splits + i];
    a += factor * acc[(b * splits + i) * HEAD + lane];
  }
  out[b * HEAD + lane] = a / s;
}
