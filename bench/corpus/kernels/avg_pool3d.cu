// Means of windows of 3 x 3 x 3 with stride 2 and padding 1; places beyond the volume do not count.
__global__ void avg_pool3d(const float* x, float* y, int depth, int height, int width, int od, int oh, int ow) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, channel = blockIdx.y;
  if (i >= od * oh * ow) return;
  int c = i % ow, r = i / ow % oh, p = i / (ow * oh);
  const float* own = x + channel * depth * height * width;
  float sum = 0.0f;
  int count = 0;
  for (int a = 2 * p - 1; a <= 2 * p + 1; a++)
    for (int b = 2 * r - 1; b <= 2 * r + 1; b++)
      for (int d = 2 * c - 1; d <= 2 * c + 1; d++)
        if (a >= 0 && a < depth && b >= 0 && b < height && d >= 0 && d < width) {
          sum += own[(a * height + b) * width + d];
          count++;
        }
  y[channel * od * oh * ow + i] = sum / count;
}
