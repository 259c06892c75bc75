// Log-likelihood of label sequences under frames of log-probabilities (CTC): class 0 is the blank.
#define MOST 10

__device__ float add_logs(float a, float b) {
  const float most = fmaxf(a, b);
  if (most == -INFINITY) return -INFINITY;
  return most + log1pf(expf(-fabsf(a - b)));
}

__global__ void ctc_alpha(const float* logp, const int* label, const int* length, float* loss, int frames, int classes) {
  __shared__ float alpha[2][2 * MOST + 1];
  const int b = blockIdx.x, s = threadIdx.x, n = length[b], states = 2 * n + 1;
  const float* p = logp + (size_t)b * frames * classes;
  const int* labels = label + b * MOST;
  const int own = s < states && s % 2 ? labels[s / 2] : 0;
  const bool skips = s < states && s % 2 && s >= 3 && own != labels[s / 2 - 1];
  if (s < 2 * MOST + 1) alpha[0][s] = s < states && s < 2 ? p[own] : -INFINITY;
  __syncthreads();
  for (int t = 1; t < frames; ++t) {
    const float* before = alpha[(t - 1) & 1];
    if (s < states) {
      float v = before[s];
      if (s >= 1) v = add_logs(v, before[s - 1]);
      if (skips) v = add_logs(v, before[s - 2]);
      alpha[t & 1][s] = v + p[t * classes + own];
    }
    __syncthreads();
  }
  if (s == 0) {
    const float* last = alpha[(frames - 1) & 1];
    loss[b] = -(n ? add_logs(last[states - 1], last[states - 2]) : last[0]);
  }
}
