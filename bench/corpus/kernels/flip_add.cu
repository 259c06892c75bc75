// Adds a picture and a view of another one, whose strides may be negative.
__global__ void flip_add(const float* a, const float* view, float* y, int rows, int columns, int offset, int row_stride,
                         int column_stride) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= rows * columns) return;
  const int r = i / columns, c = i % columns;
  y[i] = a[i] + view[offset + r * row_stride + c * column_stride];
}
