// Transposes matrices of 32 by 32 bits, a word a row and the lowest bit first, a warp a matrix.
__global__ void bit_transpose(const unsigned* x, unsigned* y, int n) {
  int matrix = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (matrix >= n) return;
  unsigned row = x[matrix * 32 + lane], mask = 0xffff;
  for (int step = 16; step > 0; step /= 2, mask ^= mask << step) {
    unsigned other = __shfl_xor_sync(0xffffffff, row, step);
    row = lane & step ? (row & ~mask) | (other >> step & mask) : (row & mask) | (other << step & ~mask);
  }
  y[matrix * 32 + lane] = row;
}
