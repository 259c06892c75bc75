// Rotates rows to the right by numbers of places that may be negative or more than a row.
__global__ void rotate_rows(const float* x, const int* by, float* y, int columns) {
  const int row = blockIdx.x;
  for (int c = threadIdx.x; c < columns; c += blockDim.x) {
    int from = c - by[row] % columns;
    if (from < 0) from += columns;
    if (from >= columns) from -= columns;
    y[row * columns + c] = x[row * columns + from];
  }
}
