// Packs signed 8-bit numbers, limited to -8..7, two in a byte: the first in the lower half. The last
// byte's upper half is zero if the count is odd.
__global__ void nibbles(const signed char* x, unsigned char* packed, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (2 * i >= n) return;
  int low = max(-8, min(7, (int)x[2 * i]));
  int high = 2 * i + 1 < n ? max(-8, min(7, (int)x[2 * i + 1])) : 0;
  packed[i] = (unsigned char)((low & 15) | (high << 4));
}
