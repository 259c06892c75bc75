// A step of Adam with bias correction: new parameters and moments.
__global__ void adam(const float* p, const float* g, const float* m, const float* v, float* p2,
                     float* m2, float* v2, float rate, float beta1, float beta2, float epsilon,
                     float correction1, float correction2, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float first = beta1 * m[i] + (1.0f - beta1) * g[i];
  float second = beta2 * v[i] + (1.0f - beta2) * g[i] * g[i];
  m2[i] = first;
  v2[i] = second;
  p2[i] = p[i] - rate * (first / correction1) / (sqrtf(second / correction2) + epsilon);
}
