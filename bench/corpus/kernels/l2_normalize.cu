// Each row divided by its Euclidean norm, or by a smallest one if the norm is less.
__global__ void l2_normalize(const float* x, float* y, float smallest, int columns) {
  __shared__ float sums[4];
  int t = threadIdx.x;
  const float* row = x + blockIdx.x * columns;
  float sum = 0.0f;
  for (int k = t; k < columns; k += 128) sum += row[k] * row[k];
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (t % 32 == 0) sums[t / 32] = sum;
  __syncthreads();
  float norm = fmaxf(sqrtf(sums[0] + sums[1] + sums[2] + sums[3]), smallest);
  for (int k = t; k < columns; k += 128) y[blockIdx.x * columns + k] = row[k] / norm;
}
