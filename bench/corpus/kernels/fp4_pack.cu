// Packs numbers as two of four bits a byte: sign, two bits of exponent, one of mantissa; halves go to even.
__device__ unsigned code(float v) {
  const float a = fabsf(v);
  const unsigned m = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.f);
  return m | (signbit(v) ? 8u : 0u);
}

__global__ void fp4_pack(const float* x, unsigned char* packed, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (2 * i >= n) return;
  const unsigned low = code(x[2 * i]), high = 2 * i + 1 < n ? code(x[2 * i + 1]) : 0;
  packed[i] = low | high << 4;
}
