// Bits that all numbers of a row have, and bits that any has. A warp a row.
__global__ void and_or_rows(const unsigned* x, unsigned* all, unsigned* any, int n) {
  const int lane = threadIdx.x, row = blockIdx.x;
  unsigned both = 0xffffffffu, either = 0;
  for (int i = lane; i < n; i += 32) {
    both &= x[row * n + i];
    either |= x[row * n + i];
  }
  for (int o = 16; o > 0; o /= 2) {
    both &= __shfl_xor_sync(0xffffffff, both, o);
    either |= __shfl_xor_sync(0xffffffff, either, o);
  }
  if (lane == 0) {
    all[row] = both;
    any[row] = either;
  }
}
