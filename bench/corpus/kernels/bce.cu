// The mean binary cross-entropy of each row's logits x with targets t, a block of four warps a row.
__global__ void bce(const float* x, const float* t, float* loss, int columns) {
  __shared__ float parts[4];
  const float* in = x + (size_t)blockIdx.x * columns;
  const float* target = t + (size_t)blockIdx.x * columns;
  float sum = 0.0f;
  for (int c = threadIdx.x; c < columns; c += blockDim.x) {
    float v = in[c], p = target[c];
    float base = v > 0.0f ? v * (1.0f - p) : -v * p;
    sum += base + log1pf(expf(-fabsf(v)));
  }
  for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(0xffffffff, sum, step);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) loss[blockIdx.x] = (parts[0] + parts[1] + parts[2] + parts[3]) / columns;
}
