// Images with a byte of luma a pixel and interleaved chroma for each square of four, as RGB.
__global__ void nv12_to_rgb(const unsigned char* luma, const unsigned char* chroma, unsigned char* rgb, int height,
                            int width) {
  int column = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
  if (column >= width || row >= height) return;
  int c = 298 * (luma[row * width + column] - 16);
  const unsigned char* pair = chroma + row / 2 * width + column / 2 * 2;
  int d = pair[0] - 128, e = pair[1] - 128;
  unsigned char* out = rgb + 3 * (row * width + column);
  out[0] = min(max((c + 409 * e + 128) >> 8, 0), 255);
  out[1] = min(max((c - 100 * d - 208 * e + 128) >> 8, 0), 255);
  out[2] = min(max((c + 516 * d + 128) >> 8, 0), 255);
}
