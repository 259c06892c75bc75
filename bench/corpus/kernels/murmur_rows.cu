// MurmurHash3 (32 bits) of rows of up to 31 bytes, which lie one after another without padding.
#define STRIDE 31

__device__ unsigned mixed(unsigned k) {
  k *= 0xcc9e2d51u;
  k = k << 15 | k >> 17;
  return k * 0x1b873593u;
}

__global__ void murmur_rows(const unsigned char* bytes, const int* length, unsigned* hash, int rows, unsigned seed) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const unsigned char* in = bytes + row * STRIDE;
  const int n = length[row];
  unsigned h = seed;
  int i = 0;
  for (; i + 4 <= n; i += 4) {
    h ^= mixed(in[i] | in[i + 1] << 8 | in[i + 2] << 16 | (unsigned)in[i + 3] << 24);
    h = (h << 13 | h >> 19) * 5 + 0xe6546b64u;
  }
  unsigned k = 0;
  switch (n & 3) {
    case 3: k ^= in[i + 2] << 16;
    case 2: k ^= in[i + 1] << 8;
    case 1: h ^= mixed(k ^ in[i]);
  }
  h ^= n;
  h ^= h >> 16;
  h *= 0x85ebca6bu;
  h ^= h >> 13;
  h *= 0xc2b2ae35u;
  hash[row] = h ^ h >> 16;
}
