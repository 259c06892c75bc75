// The softmax of each row, a block of 128 threads a row.
__global__ void softmax(const float* x, float* y, int columns) {
  __shared__ float parts[128];
  const float* row = x + blockIdx.x * columns;
  int t = threadIdx.x;
  float largest = -INFINITY;
  for (int c = t; c < columns; c += 128) largest = fmaxf(largest, row[c]);
  parts[t] = largest;
  __syncthreads();
  for (int half = 64; half > 0; half /= 2) {
    if (t < half) parts[t] = fmaxf(parts[t], parts[t + half]);
    __syncthreads();
  }
  largest = parts[0];
  __syncthreads();  // all have the maximum
  float sum = 0.0f;
  for (int c = t; c < columns; c += 128) sum += expf(row[c] - largest);
  parts[t] = sum;
  __syncthreads();  // all have their sums
  for (int half = 64; half > 0; half /= 2) {
    if (t < half) parts[t] += parts[t + half];
    __syncthreads();  // a step of the sum
  }
  sum = parts[0];
  for (int c = t; c < columns; c += 128)
    y[blockIdx.x * columns + c] = expf(row[c] - largest) / sum;
}
