// A warp for each row: every lane gets the sums.
__device__ float warp_sum(float value) {
  for (int distance = 16; distance > 0; distance /= 2)
    value += __shfl_xor_sync(0xffffffff, value, distance);
  return value;
}

__global__ void layer_norm(const float* x, const float* gain, const float* bias, float* y,
                           int columns, float epsilon) {
  int row = blockIdx.x * blockDim.y + threadIdx.y, lane = threadIdx.x;
  const float* in = x + row * columns;
  float sum = 0.0f;
  for (int c = lane; c < columns; c += 32) sum += in[c];
  float mean = warp_sum(sum) / columns, squares = 0.0f;
  for (int c = lane; c < columns; c += 32) {
    float apart = in[c] - mean;
    squares += apart * apart;
  }
  float scale = rsqrtf(warp_sum(squares) / columns + epsilon);
  for (int c = lane; c < columns; c += 32)
    y[row * columns + c] = (in[c] - mean) * scale * gain[c] + bias[c];
}
