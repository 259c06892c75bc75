// Maximum of windows of 3 by 3, two apart, with a border of one, and where in its plane it lies: the
// first one in the order of rows, of several equal ones.
__global__ void pool_indices(const float* x, float* y, int* index, int planes, int height,
                             int width) {
  int rows = (height + 1) / 2, columns = (width + 1) / 2;
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= planes * rows * columns) return;
  int c = i % columns, r = i / columns % rows, plane = i / (columns * rows);
  const float* in = x + (size_t)plane * height * width;
  float best = -INFINITY;
  int at = -1;
  for (int a = 2 * r - 1; a <= 2 * r + 1; a++) {
    for (int b = 2 * c - 1; b <= 2 * c + 1; b++) {
      if (a < 0 || a >= height || b < 0 || b >= width) continue;
      float value = in[a * width + b];
      if (value > best) {
        best = value;
        at = a * width + b;
      }
    }
  }
  y[i] = best;
  index[i] = at;
}
