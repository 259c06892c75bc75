// Haar wavelet transform of rows of 100 over all levels; of an odd number the last element moves up as it is.
#define N 100

__global__ void haar_rows(const float* x, float* y) {
  __shared__ float a[N], b[N];
  const int t = threadIdx.x;
  for (int i = t; i < N; i += blockDim.x) a[i] = x[blockIdx.x * N + i];
  __syncthreads();
  for (int n = N; n > 1; n = (n + 1) / 2) {
    const int half = n / 2, kept = n - half;
    for (int i = t; i < half; i += blockDim.x) {
      b[i] = (a[2 * i] + a[2 * i + 1]) * 0.70710678f;
      b[kept + i] = (a[2 * i] - a[2 * i + 1]) * 0.70710678f;
    }
    if (n % 2 && t == 0) b[half] = a[n - 1];
    __syncthreads();
    for (int i = t; i < n; i += blockDim.x) a[i] = b[i];
    __syncthreads();
  }
  for (int i = t; i < N; i += blockDim.x) y[blockIdx.x * N + i] = a[i];
}
