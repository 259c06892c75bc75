// Inner products of rows of complex numbers, with the first operand conjugated; a warp a row.
__global__ void complex_dot(const float2* a, const float2* b, float2* y, int rows, int columns) {
  int row = (blockIdx.x * 128 + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  float re = 0.0f, im = 0.0f;
  for (int k = lane; k < columns; k += 32) {
    float2 u = a[row * columns + k], v = b[row * columns + k];
    re += u.x * v.x + u.y * v.y;
    im += u.x * v.y - u.y * v.x;
  }
  for (int step = 16; step > 0; step /= 2) {
    re += __shfl_down_sync(0xffffffffu, re, step);
    im += __shfl_down_sync(0xffffffffu, im, step);
  }
  if (lane == 0) y[row] = make_float2(re, im);
}
