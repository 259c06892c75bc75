// Rounds to int8 with saturation, after ReLU.
__global__ void quantize(const float* x, signed char* y, float scale, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int value = (int)rintf(x[i] * scale);
  value = max(value, 0);
  y[i] = (signed char)min(value, 127);
}
