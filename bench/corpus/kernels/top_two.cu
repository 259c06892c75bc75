// The two largest numbers of each row; equal ones count twice.
__global__ void top_two(const float* x, float* y, int columns) {
  __shared__ float2 part[4];
  const int t = threadIdx.x;
  const float* row = x + (size_t)blockIdx.x * columns;
  float a = -INFINITY, b = -INFINITY;
  for (int c = t; c < columns; c += blockDim.x) {
    const float v = row[c];
    b = fmaxf(b, fminf(a, v));
    a = fmaxf(a, v);
  }
  for (int m = 16; m; m >>= 1) {
    const float oa = __shfl_xor_sync(0xffffffff, a, m), ob = __shfl_xor_sync(0xffffffff, b, m);
    b = fmaxf(fminf(a, oa), fmaxf(b, ob));
    a = fmaxf(a, oa);
  }
  if (t % 32 == 0) part[t / 32] = make_float2(a, b);
  __syncthreads();
  if (t == 0) {
    for (int w = 1; w < 4; ++w) {
      b = fmaxf(fminf(a, part[w].x), fmaxf(b, part[w].y));
      a = fmaxf(a, part[w].x);
    }
    y[2 * blockIdx.x] = a;
    y[2 * blockIdx.x + 1] = b;
  }
}
