// Spreads groups of four channels over squares of 2 by 2 places of one channel.
__global__ void pixel_shuffle(const float* x, float* y, int images, int channels, int height,
                              int width) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= images * channels * 4 * height * width) return;
  int c = i % (2 * width), r = i / (2 * width) % (2 * height);
  int channel = i / (4 * width * height) % channels, image = i / (4 * width * height * channels);
  int from = (image * channels + channel) * 4 + r % 2 * 2 + c % 2;
  y[i] = x[(from * height + r / 2) * width + c / 2];
}
