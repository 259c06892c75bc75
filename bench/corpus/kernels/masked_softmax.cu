// Softmax of the places of each row whose mask is zero, a warp a row; heads share masks, other
// places are zero, and so is a row without any.
__global__ void masked_softmax(const float* x, const unsigned char* mask, float* y, int heads,
                               int rows, int columns) {
  int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= heads * rows) return;
  const float* in = x + (size_t)row * columns;
  const unsigned char* hidden = mask + (size_t)(row % rows) * columns;
  float largest = -INFINITY;
  for (int c = lane; c < columns; c += 32)
    if (!hidden[c]) largest = fmaxf(largest, in[c]);
  for (int step = 16; step > 0; step /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, step));
  float sum = 0.0f;
  for (int c = lane; c < columns; c += 32)
    if (!hidden[c]) sum += expf(in[c] - largest);
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
  for (int c = lane; c < columns; c += 32)
    y[(size_t)row * columns + c] = hidden[c] ? 0.0f : expf(in[c] - largest) / sum;
}
