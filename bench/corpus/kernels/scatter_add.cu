// Adds values to bins by index, after clearing the bins.
__global__ void clear(float* y, int bins) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < bins) y[i] = 0.0f;
}

__global__ void scatter(const float* x, const int* index, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomicAdd(&y[index[i]], x[i]);
}
