// A weighted mean of five neighbours; beyond the ends there are zeros.
__global__ void stencil(const float* x, const float* weights, float* y, int n) {
  __shared__ float part[64 + 4];
  int i = blockIdx.x * 64 + threadIdx.x;
  part[threadIdx.x + 2] = i < n ? x[i] : 0.0f;
  if (threadIdx.x < 2) {
    int before = i - 2, after = i + 64;
    part[threadIdx.x] = before >= 0 && before < n ? x[before] : 0.0f;
    part[threadIdx.x + 66] = after < n ? x[after] : 0.0f;
  }
  __syncthreads();
  float sum = 0.0f;
  for (int k = 0; k < 5; ++k) sum += weights[k] * part[threadIdx.x + k];
  if (i < n) y[i] = sum;
}
