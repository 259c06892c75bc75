// Sorts rows by exchanging neighbours in turns.
__global__ void odd_even_sort(const int* x, int* y, int n) {
  __shared__ int a[64];
  const int t = threadIdx.x, row = blockIdx.x;
  for (int i = t; i < n; i += blockDim.x) a[i] = x[row * n + i];
  __syncthreads();
  for (int r = 0; r < n; ++r) {
    const int i = 2 * t + (r & 1);
    if (i + 1 < n && a[i] > a[i + 1]) {
      const int kept = a[i];
      a[i] = a[i + 1];
      a[i + 1] = kept;
    }
    __syncthreads();
  }
  for (int i = t; i < n; i += blockDim.x) y[row * n + i] = a[i];
}
