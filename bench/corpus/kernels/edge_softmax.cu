// Softmax of edges over those that lead to the same node, by atomics; nodes may have none.
__device__ unsigned ordered(float f) {
  const unsigned b = __float_as_uint(f);
  return b >> 31 ? ~b : b | 0x80000000u;
}

__device__ float number(unsigned u) { return __uint_as_float(u >> 31 ? u & 0x7fffffffu : ~u); }

__global__ void start(unsigned* most, float* sum, int nodes) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < nodes) {
    most[i] = 0;
    sum[i] = 0.f;
  }
}

__global__ void maxima(const float* x, const int* to, unsigned* most, int edges) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < edges) atomicMax(&most[to[i]], ordered(x[i]));
}

__global__ void sums(const float* x, const int* to, const unsigned* most, float* sum, float* p, int edges) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= edges) return;
  p[i] = expf(x[i] - number(most[to[i]]));
  atomicAdd(&sum[to[i]], p[i]);
}

__global__ void shares(const int* to, const float* sum, float* p, int edges) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < edges) p[i] /= sum[to[i]];
}
