// Largest element of each segment, minus infinity replaced by 0 where there is none; atomics on the bits of floats.
__device__ void atomic_max(float* address, float value) {
  if (value == 0.0f) value = 0.0f;
  if (!signbit(value)) atomicMax((int*)address, __float_as_int(value));
  else atomicMin((unsigned*)address, __float_as_uint(value));
}

__global__ void clear(float* y, int segments) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < segments) y[i] = -INFINITY;
}

__global__ void segment_max(const float* x, const int* segment, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomic_max(&y[segment[i]], x[i]);
}

__global__ void finish(float* y, int segments) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < segments && y[i] == -INFINITY) y[i] = 0.0f;
}
