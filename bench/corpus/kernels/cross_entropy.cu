// The negative log-likelihood of each row's label, a warp a row.
__global__ void cross_entropy(const float* x, const int* label, float* loss, int columns) {
  const float* row = x + blockIdx.x * columns;
  float largest = -INFINITY;
  for (int c = threadIdx.x; c < columns; c += 32) largest = fmaxf(largest, row[c]);
  for (int step = 16; step > 0; step /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, step));
  float sum = 0.0f;
  for (int c = threadIdx.x; c < columns; c += 32) sum += expf(row[c] - largest);
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
  if (threadIdx.x == 0) loss[blockIdx.x] = logf(sum) + largest - row[label[blockIdx.x]];
}
