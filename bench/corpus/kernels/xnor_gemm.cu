// Products of rows of 70 signs in words: equal signs less different ones. What lies above the 70th bit is undefined.
__global__ void xnor_gemm(const unsigned* a, const unsigned* b, int* y, int rows, int columns, int bits) {
  const int j = blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y, words = (bits + 31) / 32;
  if (j >= columns) return;
  int different = 0;
  for (int w = 0; w < words; ++w) {
    const int left = bits - 32 * w;
    const unsigned mask = left < 32 ? (1u << left) - 1 : 0xffffffffu;
    different += __popc((a[i * words + w] ^ b[j * words + w]) & mask);
  }
  y[i * columns + j] = bits - 2 * different;
}
