// One product for each group of rows of x, with a matrix of its own, as in a mixture of experts.
// The rows of group g are those from offsets[g] to below offsets[g + 1]; there may be none.
__global__ void grouped_gemm(const float* x, const float* w, const int* offsets, float* y, int n,
                             int k) {
  int column = blockIdx.x * blockDim.x + threadIdx.x;
  if (column >= n) return;
  const float* matrix = w + (long long)blockIdx.z * k * n;
  int end = offsets[blockIdx.z + 1];
  int first = offsets[blockIdx.z] + blockIdx.y * blockDim.y + threadIdx.y;
  for (int row = first; row < end; row += BLOCKS * blockDim.y) {
    float sum = 0.0f;
    for (int i = 0; i < k; ++i) sum += x[row * k + i] * matrix[i * n + column];
    y[row * n + column] = sum;
  }
}
