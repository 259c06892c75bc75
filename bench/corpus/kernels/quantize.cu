// Rounds x / scale to integers of eight bits, ties to even, and clamps them.
__global__ void quantize(const float* x, signed char* y, float scale, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    float v = rintf(x[i] * scale);
    y[i] = (signed char)fminf(fmaxf(v, -128.0f), 127.0f);
  }
}
