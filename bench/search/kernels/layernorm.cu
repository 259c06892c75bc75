// Normalizes each row and scales it, by a block of THREADS threads that reads the row three times.
__global__ void layernorm(const float* x, const float* weight, const float* bias, float* y,
                          int columns, float epsilon) {
  __shared__ float parts[THREADS];
  const float* row = x + (long long)blockIdx.x * columns;
  float* out = y + (long long)blockIdx.x * columns;
  int t = threadIdx.x;
  float sum = 0.0f;
  for (int c = t; c < columns; c += THREADS) sum += row[c];
  parts[t] = sum;
  __syncthreads();
  for (int half = THREADS / 2; half > 0; half /= 2) {
    if (t < half) parts[t] += parts[t + half];
    __syncthreads();
  }
  float mean = parts[0] / columns;
  __syncthreads();
  float squares = 0.0f;
  for (int c = t; c < columns; c += THREADS) squares += (row[c] - mean) * (row[c] - mean);
  parts[t] = squares;
  __syncthreads();
  for (int half = THREADS / 2; half > 0; half /= 2) {
    if (t < half) parts[t] += parts[t + half];
    __syncthreads();
  }
  float deviation = sqrtf(parts[0] / columns + epsilon);
  for (int c = t; c < columns; c += THREADS) {
    out[c] = (row[c] - mean) / deviation * weight[c] + bias[c];
  }
}
