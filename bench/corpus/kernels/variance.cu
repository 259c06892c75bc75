// The sample variance of each row, a warp a row, by Welford's method.
__global__ void variance(const float* x, float* y, int columns) {
  const float* row = x + blockIdx.x * columns;
  float count = 0.0f, mean = 0.0f, squares = 0.0f;
  for (int c = threadIdx.x; c < columns; c += 32) {
    count += 1.0f;
    float apart = row[c] - mean;
    mean += apart / count;
    squares += apart * (row[c] - mean);
  }
  for (int step = 16; step > 0; step /= 2) {
    float number = __shfl_down_sync(0xffffffff, count, step);
    float other = __shfl_down_sync(0xffffffff, mean, step);
    float more = __shfl_down_sync(0xffffffff, squares, step);
    float all = count + number, apart = other - mean;
    if (all > 0.0f) {
      mean += apart * number / all;
      squares += more + apart * apart * count * number / all;
    }
    count = all;
  }
  if (threadIdx.x == 0) y[blockIdx.x] = squares / (columns - 1);
}
