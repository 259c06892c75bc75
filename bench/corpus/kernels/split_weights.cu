// A step of descent on weights in two halves: the upper 16 bits, which serve as bfloat16, and the lower ones.
// Both halves together are a number in single precision.
__global__ void split_weights(unsigned short* upper, unsigned short* lower, const float* gradient, int n, float rate) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float w = __uint_as_float((unsigned)upper[i] << 16 | lower[i]);
  w = fmaf(-rate, gradient[i], w);
  const unsigned bits = __float_as_uint(w);
  upper[i] = bits >> 16;
  lower[i] = bits & 0xffff;
}
