// Spectrum of rows of 2 N real numbers from that of N complex ones, which hold even and odd numbers: N + 1 values a row.
__global__ void rfft_rows(const float2* z, float2* spectrum, int n) {
  const int row = blockIdx.y, k = blockIdx.x * blockDim.x + threadIdx.x;
  if (k > n) return;
  const float2* in = z + (size_t)row * n;
  const float2 a = in[k % n], b = in[(n - k) % n];
  const float er = 0.5f * (a.x + b.x), ei = 0.5f * (a.y - b.y);
  const float dr = 0.5f * (a.y + b.y), di = -0.5f * (a.x - b.x);
  float s, c;
  sincospif(-(float)k / n, &s, &c);
  spectrum[(size_t)row * (n + 1) + k] = make_float2(er + c * dr - s * di, ei + c * di + s * dr);
}
