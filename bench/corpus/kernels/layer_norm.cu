// Layer normalization of rows, a warp a row, four warps a block.
__device__ float total(float v) {
  for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(0xffffffff, v, step);
  return v;
}

__global__ void layer_norm(const float* x, const float* gain, const float* bias, float* y,
                           int rows, int columns, float epsilon) {
  int row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  const float* in = x + row * columns;
  float sum = 0.0f;
  for (int c = lane; c < columns; c += 32) sum += in[c];
  float mean = total(sum) / columns;
  float squares = 0.0f;
  for (int c = lane; c < columns; c += 32) squares += (in[c] - mean) * (in[c] - mean);
  float scale = rsqrtf(total(squares) / columns + epsilon);
  for (int c = lane; c < columns; c += 32)
    y[row * columns + c] = (in[c] - mean) * scale * gain[c] + bias[c];
}
