// Discrete Fourier transform of 256 complex numbers in double precision, a block each: Stockham's
// algorithm of radix 2.
__global__ void stockham(const double2* x, double2* y) {
  const int n = 256;
  __shared__ double2 buffer[2][n];
  int t = threadIdx.x, current = 0;
  x += blockIdx.x * n;
  y += blockIdx.x * n;
  buffer[0][t] = x[t];
  buffer[0][t + n / 2] = x[t + n / 2];
  __syncthreads();
  for (int half = 1; half < n; half *= 2) {
    int k = t & (half - 1);
    double2 a = buffer[current][t], b = buffer[current][t + n / 2];
    double sine, cosine;
    sincospi(-(double)k / half, &sine, &cosine);
    double2 turned = make_double2(b.x * cosine - b.y * sine, b.x * sine + b.y * cosine);
    int to = 2 * (t - k) + k;
    buffer[1 - current][to] = make_double2(a.x + turned.x, a.y + turned.y);
    buffer[1 - current][to + half] = make_double2(a.x - turned.x, a.y - turned.y);
    current = 1 - current;
    __syncthreads();
  }
  y[t] = buffer[current][t];
  y[t + n / 2] = buffer[current][t + n / 2];
}
