// A block of 64 threads for each row.
__global__ void softmax(const float* x, float* y, int columns) {
  __shared__ float parts[64];
  const float* row = x + blockIdx.x * columns;
  int t = threadIdx.x;
  float largest = -INFINITY;
  for (int c = t; c < columns; c += 64) largest = fmaxf(largest, row[c]);
  parts[t] = largest;
  __syncthreads();
  for (int half = 32; half > 0; half /= 2) {
    if (t < half) parts[t] = fmaxf(parts[t], parts[t + half]);
    __syncthreads();
  }
  largest = parts[0];
  __syncthreads();
  float sum = 0.0f;
  for (int c = t; c < columns; c += 64) sum += expf(row[c] - largest);
  parts[t] = sum;
  __syncthreads();
  for (int half = 32; half > 0; half /= 2) {
    if (t < half) parts[t] += parts[t + half];
    __syncthreads();
  }
  sum = parts[0];
  for (int c = t; c < columns; c += 64)
    y[blockIdx.x * columns + c] = expf(row[c] - largest) / sum;
}
