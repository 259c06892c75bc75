// The mean, weighted by class, of minus the logarithm of each sample's probability of its label; a
// label of -1 is left out, and the mean of nothing is zero.
__global__ void nll_mean(const float* logs, const int* label, const float* weight, float* loss,
                         int n, int classes) {
  __shared__ float sums[256], weights[256];
  int t = threadIdx.x;
  float sum = 0.0f, total = 0.0f;
  for (int i = t; i < n; i += blockDim.x) {
    int own = label[i];
    if (own < 0) continue;
    sum -= weight[own] * logs[(size_t)i * classes + own];
    total += weight[own];
  }
  sums[t] = sum;
  weights[t] = total;
  __syncthreads();
  for (int half = 128; half > 0; half /= 2) {
    if (t < half) {
      sums[t] += sums[t + half];
      weights[t] += weights[t + half];
    }
    __syncthreads();
  }
  if (t == 0) loss[0] = weights[0] > 0.0f ? sums[0] / weights[0] : 0.0f;
}
