// Nearest neighbour of each output pixel, by a step of 16 binary digits that the host has rounded up.
__global__ void resize_fixed(const unsigned char* pixels, unsigned char* out, int in_width, int out_width, int rows, int step) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
  if (x >= out_width) return;
  const int from = (int)(((long long)x * step) >> 16);
  out[(size_t)y * out_width + x] = pixels[(size_t)y * in_width + min(from, in_width - 1)];
}
