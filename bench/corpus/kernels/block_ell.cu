// Product of a sparse matrix of 8 x 8 blocks in blocked ELL format and a dense matrix. Each row of
// blocks has room for `width` of them; a column of -1 marks room that is not used.
#define B 8

__global__ void block_ell(const float* values, const int* columns, const float* dense, float* y, int width, int n) {
  __shared__ float block[B][B + 1];
  int block_row = blockIdx.x, column = blockIdx.y * blockDim.x + threadIdx.x;
  float sum[B] = {};
  for (int k = 0; k < width; k++) {
    int block_column = columns[block_row * width + k];
    if (block_column < 0) continue;
    const float* from = values + (size_t)(block_row * width + k) * B * B;
    __syncthreads();
    for (int i = threadIdx.x; i < B * B; i += blockDim.x) block[i / B][i % B] = from[i];
    __syncthreads();
    if (column < n) {
      for (int j = 0; j < B; j++) {
        float other = dense[(block_column * B + j) * n + column];
        for (int i = 0; i < B; i++) sum[i] += block[i][j] * other;
      }
    }
  }
  if (column < n)
    for (int i = 0; i < B; i++) y[(block_row * B + i) * n + column] = sum[i];
}
