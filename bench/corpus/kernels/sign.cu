// The sign bit of each number as -1 or 1, negative zero included.
__global__ void sign(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = signbit(x[i]) ? -1.0f : 1.0f;
}
