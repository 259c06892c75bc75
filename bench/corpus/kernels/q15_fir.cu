// Filters each row of fractions of 15 bits with eight coefficients; rounds halves up and saturates.
__global__ void q15_fir(const short* x, const short* taps, short* y, int columns) {
  __shared__ short part[128 + 7];
  int begin = blockIdx.x * 128, t = threadIdx.x;
  x += blockIdx.y * columns;
  y += blockIdx.y * columns;
  for (int k = t; k < 135; k += 128) {
    int from = begin + k - 7;
    part[k] = from >= 0 && from < columns ? x[from] : 0;
  }
  __syncthreads();
  if (begin + t >= columns) return;
  long long sum = 16384;
  for (int k = 0; k < 8; k++) sum += taps[k] * part[t + 7 - k];
  sum >>= 15;
  y[begin + t] = (short)max(-32768ll, min(32767ll, sum));
}
