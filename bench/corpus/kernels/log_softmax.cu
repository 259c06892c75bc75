// The logarithm of the softmax of each row, a block a row.
__device__ float whole(float own, bool maximum) {
  __shared__ float parts[4];
  for (int d = 16; d > 0; d /= 2) {
    float other = __shfl_xor_sync(0xffffffff, own, d);
    own = maximum ? fmaxf(own, other) : own + other;
  }
  __syncthreads();  // earlier results have been read
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = own;
  __syncthreads();
  if (maximum) return fmaxf(fmaxf(parts[0], parts[1]), fmaxf(parts[2], parts[3]));
  return parts[0] + parts[1] + (parts[2] + parts[3]);
}

__global__ void log_softmax(const float* x, float* y, int columns) {
  const float* row = x + (size_t)blockIdx.x * columns;
  float largest = -INFINITY;
  for (int c = threadIdx.x; c < columns; c += blockDim.x) largest = fmaxf(largest, row[c]);
  largest = whole(largest, true);
  float sum = 0.0f;
  for (int c = threadIdx.x; c < columns; c += blockDim.x) sum += expf(row[c] - largest);
  sum = whole(sum, false);
  for (int c = threadIdx.x; c < columns; c += blockDim.x)
    y[(size_t)blockIdx.x * columns + c] = row[c] - largest - logf(sum);
}
