// The mean of the rows of a table that a bag names, a block a bag; negative indices are padding,
// and a bag of padding gives zeros.
__global__ void embedding_bag(const float* table, const int* index, float* y, int length,
                              int width) {
  const int* bag = index + blockIdx.x * length;
  for (int c = threadIdx.x; c < width; c += blockDim.x) {
    float sum = 0.0f;
    int count = 0;
    for (int j = 0; j < length; j++) {
      int row = bag[j];
      if (row < 0) continue;
      sum += table[(size_t)row * width + c];
      count++;
    }
    y[(size_t)blockIdx.x * width + c] = count > 0 ? sum / count : 0.0f;
  }
}
