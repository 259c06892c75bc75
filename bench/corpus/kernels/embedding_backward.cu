// Gradient of a table of embeddings: for each row, the sum over the tokens that used it; the row for
// padding gets zeros. A warp a row, a lane a column.
__global__ void embedding_backward(const float* dy, const int* index, float* dtable, int n,
                                   int width, int padding) {
  int row = blockIdx.x, c = threadIdx.x;
  if (c >= width) return;
  float sum = 0.0f;
  for (int i = 0; i < n; i++) {
    if (index[i] == row && row != padding) sum += dy[(size_t)i * width + c];
  }
  dtable[(size_t)row * width + c] = sum;
}
