// The gradient of the cross-entropy with smoothed labels, a warp a row: softmax less the target,
// times a factor; rows with a negative label count for nothing and have a gradient of zero.
__global__ void smooth_ce_grad(const float* x, const int* label, float* dx, int rows, int columns,
                               float smooth, float factor) {
  int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  const float* in = x + (size_t)row * columns;
  float* out = dx + (size_t)row * columns;
  int right = label[row];
  if (right < 0) {
    for (int c = lane; c < columns; c += 32) out[c] = 0.0f;
    return;
  }
  float largest = -INFINITY;
  for (int c = lane; c < columns; c += 32) largest = fmaxf(largest, in[c]);
  for (int step = 16; step > 0; step /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, step));
  float sum = 0.0f;
  for (int c = lane; c < columns; c += 32) sum += expf(in[c] - largest);
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
  for (int c = lane; c < columns; c += 32) {
    float target = smooth / columns + (c == right ? 1.0f - smooth : 0.0f);
    out[c] = (expf(in[c] - largest) / sum - target) * factor;
  }
}
