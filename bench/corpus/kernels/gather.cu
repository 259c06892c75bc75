// Copies rows of a table by index; indices outside give zeros.
__global__ void gather(const float* table, const int* index, float* y, int rows, int width) {
  int row = index[blockIdx.x];
  bool inside = row >= 0 && row < rows;
  for (int c = threadIdx.x; c < width; c += blockDim.x)
    y[blockIdx.x * width + c] = inside ? table[row * width + c] : 0.0f;
}
