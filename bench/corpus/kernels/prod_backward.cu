// Gradient of the product of each row: for each element, the product of the others.
#define WIDTH 14

__global__ void prod_backward(const float* x, const float* grad, float* y, int rows) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const float* in = x + (size_t)row * WIDTH;
  float after[WIDTH];
  float p = 1.f;
  for (int i = WIDTH - 1; i >= 0; --i) {
    after[i] = p;
    p *= in[i];
  }
  float before = 1.f;
  for (int i = 0; i < WIDTH; ++i) {
    y[row * WIDTH + i] = grad[row] * (before * after[i]);
    before *= in[i];
  }
}
