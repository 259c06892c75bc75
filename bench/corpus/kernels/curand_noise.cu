// Adds uniform noise in (-1/2, 1/2] times a strength: cuRAND's Philox, a sequence for each thread, four
// numbers at a time.
#include <curand_kernel.h>

__global__ void curand_noise(const float* x, float* y, unsigned long long seed, unsigned long long offset, float strength, int n) {
  int t = blockIdx.x * blockDim.x + threadIdx.x;
  curandStatePhilox4_32_10_t state;
  curand_init(seed, t, offset, &state);
  float4 u = curand_uniform4(&state);
  float noise[4] = {u.x, u.y, u.z, u.w};
  for (int j = 0; j < 4; j++) {
    int i = 4 * t + j;
    if (i < n) y[i] = x[i] + strength * (noise[j] - 0.5f);
  }
}
