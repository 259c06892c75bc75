// Products of pairs of numbers i > j, from the pair of a given number on: pairs are counted row by row of the lower triangle.
__global__ void pair_products(const float* x, float* y, int first, int n) {
  const int t = blockIdx.x * blockDim.x + threadIdx.x;
  if (t >= n) return;
  const int k = first + t;
  int i = (int)((sqrtf(8.0f * k + 1.0f) + 1.0f) / 2.0f);
  while ((long long)i * (i - 1) / 2 > k) --i;
  while ((long long)i * (i + 1) / 2 <= k) ++i;
  const int j = k - (int)((long long)i * (i - 1) / 2);
  y[t] = x[i] * x[j];
}
