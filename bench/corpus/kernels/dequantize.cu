// Unpacks signed integers of four bits, low half first, and scales groups of 32.
__global__ void dequantize(const unsigned char* packed, const float* scale, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int q = packed[i / 2] >> (i % 2 * 4) & 15;
  y[i] = (q - 8) * scale[i / 32];
}
