// Convolution of each channel along time with the last four values, a tile of 64 times a block.
__global__ void causal_conv(const float* x, const float* w, const float* bias, float* y,
                            int channels, int length) {
  __shared__ float tile[64 + 3];
  int start = blockIdx.x * 64, channel = blockIdx.y;
  size_t row = ((size_t)blockIdx.z * channels + channel) * length;
  for (int j = threadIdx.x; j < 64 + 3; j += 64) {
    int t = start + j - 3;
    tile[j] = t >= 0 && t < length ? x[row + t] : 0.0f;
  }
  __syncthreads();
  int t = start + threadIdx.x;
  if (t < length) {
    float sum = bias[channel];
    for (int k = 0; k < 4; k++) sum += w[channel * 4 + k] * tile[threadIdx.x + k];
    y[row + t] = sum;
  }
}
