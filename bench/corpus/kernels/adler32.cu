// Adler-32 checksums of rows, a block of 128 threads a row.
__global__ void adler32(const unsigned char* x, unsigned* y, int columns) {
  __shared__ unsigned long long sums[2][128];
  int t = threadIdx.x;
  x += blockIdx.x * columns;
  unsigned long long a = 0, b = 0;
  for (int i = t; i < columns; i += 128) {
    a += x[i];
    b += (unsigned long long)(columns - i) * x[i];
  }
  sums[0][t] = a;
  sums[1][t] = b;
  for (int half = 64; half > 0; half /= 2) {
    __syncthreads();  // partial sums are there
    if (t < half) {
      sums[0][t] += sums[0][t + half];
      sums[1][t] += sums[1][t + half];
    }
  }
  if (t == 0) {
    unsigned low = (unsigned)((1 + sums[0][0]) % 65521), high = (unsigned)((columns + sums[1][0]) % 65521);
    y[blockIdx.x] = high << 16 | low;
  }
}
