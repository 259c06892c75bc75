// Weights of four bits, eight a word in the order 0 2 4 6 1 3 5 7, with a scale and a zero point for 48 rows each.
__global__ void awq_dequant(const unsigned* packed, const unsigned* zeros, const float* scales, float* w, int rows, int words,
                            int group) {
  const int word = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
  if (word >= words) return;
  const int g = row / group;
  const unsigned v = packed[row * words + word], z = zeros[g * words + word];
  for (int k = 0; k < 8; ++k) {
    const int shift = 4 * (k % 2 * 4 + k / 2), at = word * 8 + k;
    w[(size_t)row * words * 8 + at] = (float)((int)(v >> shift & 15) - (int)(z >> shift & 15)) * scales[g * words * 8 + at];
  }
}
