// A 3 x 3 convolution with zeros around the image, a thread an output.
__global__ void conv2d(const float* x, const float* w, float* y, int channels, int filters,
                       int height, int width) {
  int c = blockIdx.x * 16 + threadIdx.x, r = blockIdx.y * 8 + threadIdx.y, f = blockIdx.z;
  if (r >= height || c >= width) return;
  float sum = 0.0f;
  for (int k = 0; k < channels; k++)
    for (int i = -1; i <= 1; i++)
      for (int j = -1; j <= 1; j++) {
        int rr = r + i, cc = c + j;
        if (rr < 0 || rr >= height || cc < 0 || cc >= width) continue;
        sum += x[(k * height + rr) * width + cc] * w[(f * channels + k) * 9 + (i + 1) * 3 + j + 1];
      }
  y[(f * height + r) * width + c] = sum;
}
