// A step of gradient descent with Nesterov momentum and weight decay, four elements a thread.
__device__ void step_of(float p, float g, float m, float* p2, float* m2, float rate,
                        float momentum, float decay) {
  g += decay * p;
  m = momentum * m + g;
  *m2 = m;
  *p2 = p - rate * (g + momentum * m);
}

__global__ void sgd(const float* p, const float* g, const float* m, float* p2, float* m2, int n,
                    float rate, float momentum, float decay) {
  int i = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
  if (i + 3 < n) {
    float4 a = *reinterpret_cast<const float4*>(p + i);
    float4 b = *reinterpret_cast<const float4*>(g + i);
    float4 c = *reinterpret_cast<const float4*>(m + i);
    float4 d, e;
    step_of(a.x, b.x, c.x, &d.x, &e.x, rate, momentum, decay);
    step_of(a.y, b.y, c.y, &d.y, &e.y, rate, momentum, decay);
    step_of(a.z, b.z, c.z, &d.z, &e.z, rate, momentum, decay);
    step_of(a.w, b.w, c.w, &d.w, &e.w, rate, momentum, decay);
    *reinterpret_cast<float4*>(p2 + i) = d;
    *reinterpret_cast<float4*>(m2 + i) = e;
  } else {
    for (; i < n; i++) step_of(p[i], g[i], m[i], &p2[i], &m2[i], rate, momentum, decay);
  }
}
