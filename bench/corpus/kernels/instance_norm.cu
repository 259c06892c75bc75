// Normalizes each channel of each image over its places, a block of 128 threads a plane.
__device__ float sum_of_block(float own, float* parts) {
  parts[threadIdx.x] = own;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
    __syncthreads();
  }
  float sum = parts[0];
  __syncthreads();  // before the next use
  return sum;
}

__global__ void instance_norm(const float* x, const float* gain, const float* bias, float* y,
                              int channels, int area, float epsilon) {
  __shared__ float parts[128];
  const float* in = x + (size_t)blockIdx.x * area;
  float* out = y + (size_t)blockIdx.x * area;
  int channel = blockIdx.x % channels;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < area; i += blockDim.x) sum += in[i];
  float mean = sum_of_block(sum, parts) / area;
  float squares = 0.0f;
  for (int i = threadIdx.x; i < area; i += blockDim.x) squares += (in[i] - mean) * (in[i] - mean);
  float factor = rsqrtf(sum_of_block(squares, parts) / area + epsilon) * gain[channel];
  for (int i = threadIdx.x; i < area; i += blockDim.x)
    out[i] = (in[i] - mean) * factor + bias[channel];
}
