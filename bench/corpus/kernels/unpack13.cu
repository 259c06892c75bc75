// Unpacks signed numbers of 13 bits, which lie one after another in words, the lowest bit first.
__global__ void unpack13(const unsigned* words, int* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const int bit = i * 13, word = bit >> 5, offset = bit & 31;
  unsigned v = words[word] >> offset;
  if (offset > 19) v |= words[word + 1] << (32 - offset);
  y[i] = (int)(v << 19) >> 19;
}
