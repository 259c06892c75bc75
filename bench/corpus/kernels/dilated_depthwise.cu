// A depthwise convolution of 3 by 3 whose taps are apart by a dilation, with zeros around.
__global__ void dilated_depthwise(const float* x, const float* w, const float* bias, float* y,
                                  int channels, int height, int width, int dilation) {
  int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;
  int channel = blockIdx.z;
  if (r >= height || c >= width) return;
  const float* in = x + (size_t)channel * height * width;
  float sum = bias[channel];
  for (int i = 0; i < 3; i++) {
    for (int j = 0; j < 3; j++) {
      int a = r + (i - 1) * dilation, b = c + (j - 1) * dilation;
      if (a >= 0 && a < height && b >= 0 && b < width) sum += in[a * width + b] * w[channel * 9 + i * 3 + j];
    }
  }
  y[((size_t)channel * height + r) * width + c] = sum;
}
