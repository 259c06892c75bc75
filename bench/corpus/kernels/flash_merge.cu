// Merges the results of attention over parts of the keys by the logarithms of their sums, a block
// of two warps a row.
__global__ void flash_merge(const float* o, const float* lse, float* merged, float* total, int parts,
                            int rows, int width) {
  int row = blockIdx.x, d = threadIdx.x;
  float largest = -INFINITY;
  for (int p = 0; p < parts; p++) largest = fmaxf(largest, lse[p * rows + row]);
  float sum = 0.0f;
  for (int p = 0; p < parts; p++) sum += expf(lse[p * rows + row] - largest);
  if (d < width) {
    float out = 0.0f;
    for (int p = 0; p < parts; p++)
      out += expf(lse[p * rows + row] - largest) * o[((size_t)p * rows + row) * width + d];
    merged[(size_t)row * width + d] = out / sum;
  }
  if (d == 0) total[row] = largest + logf(sum);
}
