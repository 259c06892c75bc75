// Values of American puts on a tree of prices, back from its leaves; a block an option.
__global__ void binomial_put(const float* price, const float* strike, float* value, float up, float chance,
                             float discount, int steps) {
  __shared__ double v[96];
  int j = threadIdx.x;
  double s = price[blockIdx.x], k = strike[blockIdx.x];
  v[j] = fmax(k - s * pow((double)up, 2.0 * j - steps), 0.0);
  __syncthreads();
  for (int step = steps - 1; step >= 0; step--) {
    double later = 0.0;
    if (j <= step) later = discount * (chance * v[j + 1] + (1.0 - chance) * v[j]);
    __syncthreads();
    if (j <= step) v[j] = fmax(later, k - s * pow((double)up, 2.0 * j - step));
    __syncthreads();
  }
  if (j == 0) value[blockIdx.x] = (float)v[0];
}
