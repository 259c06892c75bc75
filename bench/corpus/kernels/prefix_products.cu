// Products of the numbers up to each in a row, modulo 2 to the 31 less 1.
__global__ void prefix_products(const unsigned* x, unsigned* y, int columns) {
  __shared__ unsigned ends[10];
  const unsigned prime = 2147483647u;
  int t = threadIdx.x, lane = t % 32, warp = t / 32;
  unsigned long long product = t < columns ? x[blockIdx.x * columns + t] % prime : 1u;
  for (int step = 1; step < 32; step *= 2) {
    unsigned long long before = __shfl_up_sync(0xffffffffu, product, step);
    if (lane >= step) product = product * before % prime;
  }
  if (lane == 31) ends[warp] = (unsigned)product;
  __syncthreads();
  unsigned long long carry = 1;
  for (int w = 0; w < warp; w++) carry = carry * ends[w] % prime;
  if (t < columns) y[blockIdx.x * columns + t] = (unsigned)(product * carry % prime);
}
