// A step of a causal convolution of four taps with a ring of the last inputs of each channel, which moves on by one.
#define RING 4

__global__ void conv_state(float* ring, const float* x, const float* weight, const int* position, float* y, int channels) {
  const int c = blockIdx.x * blockDim.x + threadIdx.x, b = blockIdx.y;
  if (c >= channels) return;
  float* own = ring + ((size_t)b * channels + c) * RING;
  const int at = position[b];
  float s = 0.f;
  own[at & (RING - 1)] = x[b * channels + c];
  for (int k = 0; k < RING; ++k) {
    const int place = at - k;
    if (place >= 0) s += weight[c * RING + k] * own[place & (RING - 1)];
  }
  y[b * channels + c] = s;
}
