// Convolution of two groups with filters of 4 x 3, strides of 2, columns two apart, and as much padding as keeps the size.
__global__ void same_conv(const float* x, const float* w, float* y, int height, int width, int up, int left) {
  const int oh = (height + 1) / 2, ow = (width + 1) / 2;
  const int i = blockIdx.x * blockDim.x + threadIdx.x, o = blockIdx.y, b = blockIdx.z;
  if (i >= oh * ow) return;
  const int oy = i / ow, ox = i % ow, group = o / 2;
  float sum = 0.f;
  for (int c = 0; c < 3; ++c)
    for (int r = 0; r < 4; ++r)
      for (int s = 0; s < 3; ++s) {
        const int iy = oy * 2 + r - up, ix = ox * 2 + 2 * s - left;
        if (iy < 0 || iy >= height || ix < 0 || ix >= width) continue;
        sum += x[((b * 6 + group * 3 + c) * height + iy) * width + ix] * w[((o * 3 + c) * 4 + r) * 3 + s];
      }
  y[(b * 4 + o) * oh * ow + i] = sum;
}
