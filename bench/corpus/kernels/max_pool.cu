// The maximum of windows of 3 x 3 with a step of 2, a thread an output.
__global__ void max_pool(const float* x, float* y, int height, int width, int rows, int columns) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= rows * columns) return;
  int r0 = i / columns * 2 - 1, c0 = i % columns * 2 - 1;
  const float* image = x + blockIdx.y * height * width;
  float largest = -INFINITY;
  for (int r = max(r0, 0); r < min(r0 + 3, height); r++)
    for (int c = max(c0, 0); c < min(c0 + 3, width); c++)
      largest = fmaxf(largest, image[r * width + c]);
  y[blockIdx.y * rows * columns + i] = largest;
}
