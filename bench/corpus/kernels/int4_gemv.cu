// A matrix of four-bit integers, eight a word with the first one lowest, times a vector, a warp a
// row; 32 columns share a scale and a zero.
__global__ void int4_gemv(const unsigned* w, const float* scale, const unsigned char* zero,
                          const float* x, float* y, int rows, int columns) {
  int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  int words = columns / 8, groups = columns / 32;
  float sum = 0.0f;
  for (int j = lane; j < words; j += 32) {
    unsigned bits = w[row * words + j];
    int group = row * groups + j / 4;
    float part = 0.0f;
    for (int i = 0; i < 8; i++) {
      int v = (int)(bits >> 4 * i & 15) - zero[group];
      part += v * x[8 * j + i];
    }
    sum += part * scale[group];
  }
  for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(0xffffffff, sum, step);
  if (lane == 0) y[row] = sum;
}
