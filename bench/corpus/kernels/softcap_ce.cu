// Cross-entropy of logits that a tanh keeps below a cap, and its gradient; rows with a negative target count for nothing.
__global__ void softcap_ce(const float* x, const int* target, float* loss, float* grad, int classes, float cap) {
  const int row = blockIdx.x, lane = threadIdx.x;
  const float* in = x + (size_t)row * classes;
  float* g = grad + (size_t)row * classes;
  const int label = target[row];
  if (label < 0) {
    for (int c = lane; c < classes; c += 32) g[c] = 0.f;
    if (lane == 0) loss[row] = 0.f;
    return;
  }
  float most = -INFINITY, sum = 0.f;
  for (int c = lane; c < classes; c += 32) {
    const float v = cap * tanhf(in[c] / cap), next = fmaxf(most, v);
    sum = sum * expf(most - next) + expf(v - next);
    most = next;
  }
  for (int m = 16; m; m >>= 1) {
    const float om = __shfl_xor_sync(0xffffffff, most, m), os = __shfl_xor_sync(0xffffffff, sum, m);
    const float next = fmaxf(most, om);
    sum = sum * expf(most - next) + os * expf(om - next);
    most = next;
  }
  for (int c = lane; c < classes; c += 32) {
    const float t = tanhf(in[c] / cap);
    const float p = expf(cap * t - most) / sum;
    g[c] = (p - (c == label ? 1.f : 0.f)) * (1.f - t * t);
    if (c == label) loss[row] = logf(sum) + most - cap * t;
  }
}
