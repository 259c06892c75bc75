// Normalization of groups of channels of each image, a block of three warps a group. Deviations
// are taken from the group's first element, so that a constant group gives zeros.
__device__ float block_sum(float v) {
  __shared__ float parts[3];
  for (int step = 16; step > 0; step /= 2) v += __shfl_down_sync(0xffffffff, v, step);
  __syncthreads();  // an earlier sum has been read
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
  __syncthreads();
  return parts[0] + parts[1] + parts[2];
}

__global__ void group_norm(const float* x, const float* gain, const float* bias, float* y,
                           int channels, int groups, int plane, float epsilon) {
  int image = blockIdx.x / groups, group = blockIdx.x % groups;
  int each = channels / groups, count = each * plane;
  size_t first = ((size_t)image * channels + group * each) * plane;
  const float* in = x + first;
  float pivot = in[0];
  float sum = 0.0f;
  for (int i = threadIdx.x; i < count; i += blockDim.x) sum += in[i] - pivot;
  float mean = block_sum(sum) / count;
  float squares = 0.0f;
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    float apart = in[i] - pivot - mean;
    squares += apart * apart;
  }
  float scale = rsqrtf(block_sum(squares) / count + epsilon);
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    int c = group * each + i / plane;
    y[first + i] = (in[i] - pivot - mean) * scale * gain[c] + bias[c];
  }
}
