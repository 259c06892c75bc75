// Mean of the Huber loss: half the square of a difference up to delta, and linear beyond.
__device__ float block_sum(float own) {
  __shared__ float parts[8];
  for (int d = 16; d > 0; d /= 2) own += __shfl_xor_sync(0xffffffff, own, d);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = own;
  __syncthreads();
  float sum = 0.0f;
  for (int w = 0; w < (int)blockDim.x / 32; w++) sum += parts[w];
  return sum;
}

__global__ void partial_sums(const float* x, const float* target, float* partial, int n,
                             float delta) {
  float sum = 0.0f;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    float apart = fabsf(x[i] - target[i]);
    sum += apart <= delta ? 0.5f * apart * apart : delta * (apart - 0.5f * delta);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void finish(const float* partial, float* loss, int n, int blocks) {
  float sum = (int)threadIdx.x < blocks ? partial[threadIdx.x] : 0.0f;
  sum = block_sum(sum);
  if (threadIdx.x == 0) loss[0] = sum / n;
}
