#include <cuda_fp16.h>

// A moving average of weights in single precision, whose decay grows with the step up to a limit, and
// a copy of it in half precision.
__global__ void ema_update(const float* average, const __half* weight, float* next, __half* copy,
                           int n, int step, float limit) {
  float decay = fminf(limit, (1.0f + step) / (10.0f + step));
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    float value = decay * average[i] + (1.0f - decay) * __half2float(weight[i]);
    next[i] = value;
    copy[i] = __float2half(value);
  }
}
