// Mean of the rows that go to each target, zero where there are none: by atomics.
__global__ void clear(float* y, int* counts, int targets, int width) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < targets * width) y[i] = 0.0f;
  if (i < targets) counts[i] = 0;
}

__global__ void add(const float* x, const int* index, float* y, int* counts, int n, int width) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n * width) return;
  int target = index[i / width], c = i % width;
  atomicAdd(&y[target * width + c], x[i]);
  if (c == 0) atomicAdd(&counts[target], 1);
}

__global__ void divide(float* y, const int* counts, int targets, int width) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < targets * width) y[i] /= max(counts[i / width], 1);
}
