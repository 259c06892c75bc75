// The softmax of each row, by a block of THREADS threads that reads the row three times.
__global__ void softmax(const float* x, float* y, int columns) {
  __shared__ float parts[THREADS];
  const float* row = x + (long long)blockIdx.x * columns;
  float* out = y + (long long)blockIdx.x * columns;
  int t = threadIdx.x;
  float largest = -3.402823466e+38f;
  for (int c = t; c < columns; c += THREADS) largest = fmaxf(largest, row[c]);
  parts[t] = largest;
  __syncthreads();
  for (int half = THREADS / 2; half > 0; half /= 2) {
    if (t < half) parts[t] = fmaxf(parts[t], parts[t + half]);
    __syncthreads();
  }
  largest = parts[0];
  __syncthreads();
  float sum = 0.0f;
  for (int c = t; c < columns; c += THREADS) sum += expf(row[c] - largest);
  parts[t] = sum;
  __syncthreads();
  for (int half = THREADS / 2; half > 0; half /= 2) {
    if (t < half) parts[t] += parts[t + half];
    __syncthreads();
  }
  sum = parts[0];
  for (int c = t; c < columns; c += THREADS) out[c] = expf(row[c] - largest) / sum;
}
