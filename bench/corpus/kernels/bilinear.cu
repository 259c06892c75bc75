// Enlarges images with bilinear interpolation between the centres of pixels; the border's pixels
// extend outwards.
__global__ void bilinear(const float* x, float* y, int images, int height, int width, int rows,
                         int columns) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= images * rows * columns) return;
  int column = i % columns, row = i / columns % rows, image = i / (columns * rows);
  float v = fmaxf((row + 0.5f) * height / rows - 0.5f, 0.0f);
  float u = fmaxf((column + 0.5f) * width / columns - 0.5f, 0.0f);
  int top = (int)v, left = (int)u;
  int below = min(top + 1, height - 1), right = min(left + 1, width - 1);
  v -= top;
  u -= left;
  const float* in = x + (size_t)image * height * width;
  float a = in[top * width + left], b = in[top * width + right];
  float c = in[below * width + left], d = in[below * width + right];
  y[i] = (1.0f - v) * ((1.0f - u) * a + u * b) + v * ((1.0f - u) * c + u * d);
}
