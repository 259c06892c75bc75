// Adds pairs of numbers of 32 words of 32 bits, the lowest word first, a warp a pair.
__global__ void big_add(const unsigned* a, const unsigned* b, unsigned* y, int* carry, int pairs) {
  int pair = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (pair >= pairs) return;
  unsigned u = a[pair * 32 + lane], sum = u + b[pair * 32 + lane];
  unsigned made = __ballot_sync(0xffffffff, sum < u);
  unsigned passed = __ballot_sync(0xffffffff, sum == 0xffffffff);
  unsigned long long in = (passed + ((unsigned long long)made << 1)) ^ passed;
  y[pair * 32 + lane] = sum + (unsigned)(in >> lane & 1);
  if (lane == 0) carry[pair] = (int)(in >> 32 & 1);
}
