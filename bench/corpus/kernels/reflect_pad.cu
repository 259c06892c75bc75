// A border of three around each plane, of what lies as far inside: the edge itself is not repeated.
__device__ int mirrored(int i, int size) {
  if (i < 0) i = -i;
  if (i >= size) i = 2 * (size - 1) - i;
  return i;
}

__global__ void reflect_pad(const float* x, float* y, int planes, int height, int width, int pad) {
  int rows = height + 2 * pad, columns = width + 2 * pad;
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= planes * rows * columns) return;
  int c = mirrored(i % columns - pad, width), r = mirrored(i / columns % rows - pad, height);
  int plane = i / (columns * rows);
  y[i] = x[(plane * height + r) * width + c];
}
