// Numbers as bfloat16, rounded by adding the low 16 bits of a random word below the cut; two a
// thread, written as one word.
__global__ void stochastic_round(const float* x, const unsigned* word, unsigned short* y, int n) {
  int i = 2 * (blockIdx.x * blockDim.x + threadIdx.x);
  if (i + 1 < n) {
    unsigned low = (__float_as_uint(x[i]) + (word[i] & 0xffff)) >> 16;
    unsigned high = (__float_as_uint(x[i + 1]) + (word[i + 1] & 0xffff)) >> 16;
    reinterpret_cast<unsigned*>(y)[i / 2] = low | high << 16;
  } else if (i < n) {
    y[i] = (__float_as_uint(x[i]) + (word[i] & 0xffff)) >> 16;
  }
}
