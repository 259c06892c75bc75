// The mean of windows of 3 x 3 with a step of 2 and a border of 1 that does not count.
__global__ void avg_pool(const float* x, float* y, int images, int height, int width, int rows,
                         int columns) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= images * rows * columns) return;
  int column = i % columns, row = i / columns % rows, image = i / (columns * rows);
  int top = max(2 * row - 1, 0), bottom = min(2 * row + 2, height);
  int left = max(2 * column - 1, 0), right = min(2 * column + 2, width);
  const float* in = x + (size_t)image * height * width;
  float sum = 0.0f;
  for (int r = top; r < bottom; r++)
    for (int c = left; c < right; c++) sum += in[r * width + c];
  y[i] = sum / ((bottom - top) * (right - left));
}
