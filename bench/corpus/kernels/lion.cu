// A step of the Lion optimizer: the weight moves by the sign of a mean of momentum and gradient, and
// decays; the momentum is another mean.
__global__ void lion(float* p, float* m, const float* g, float rate, float beta1, float beta2, float decay, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float mean = beta1 * m[i] + (1.0f - beta1) * g[i];
  float sign = mean > 0.0f ? 1.0f : mean < 0.0f ? -1.0f : 0.0f;
  p[i] = p[i] - rate * (sign + decay * p[i]);
  m[i] = beta2 * m[i] + (1.0f - beta2) * g[i];
}
