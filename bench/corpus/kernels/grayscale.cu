// Brightness of interleaved colours in fixed point: (77 R + 150 G + 29 B + 128) / 256.
__global__ void grayscale(const unsigned char* x, unsigned char* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int r = x[3 * i], g = x[3 * i + 1], b = x[3 * i + 2];
  y[i] = (77 * r + 150 * g + 29 * b + 128) >> 8;
}
