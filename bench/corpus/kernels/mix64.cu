// Mixes the bits of 64-bit numbers (the finalizer of SplitMix64), with the number's place.
__global__ void mix64(const unsigned long long* x, unsigned long long* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned long long z = x[i] + i * 0x9e3779b97f4a7c15ull;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ z >> 27) * 0x94d049bb133111ebull;
  y[i] = z ^ z >> 31;
}
