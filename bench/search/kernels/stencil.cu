// A step of diffusion on a grid of points in three dimensions, by seven points, with zeros around
// the grid. A thread walks through PLANES points above each other.
__global__ void stencil(const float* x, float* y, int width, int height, int depth, float rate) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  int j = blockIdx.y * blockDim.y + threadIdx.y;
  if (i >= width || j >= height) return;
  int first = blockIdx.z * PLANES;
  int plane = width * height;
  for (int k = first; k < first + PLANES && k < depth; ++k) {
    int at = k * plane + j * width + i;
    float around = 0.0f;
    if (i > 0) around += x[at - 1];
    if (i < width - 1) around += x[at + 1];
    if (j > 0) around += x[at - width];
    if (j < height - 1) around += x[at + width];
    if (k > 0) around += x[at - plane];
    if (k < depth - 1) around += x[at + plane];
    y[at] = x[at] + rate * (around - 6.0f * x[at]);
  }
}
