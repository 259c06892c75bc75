// Bits of numbers in half precision from those in single precision, rounded to the nearest, halves to even.
__global__ void half_bits(const unsigned* x, unsigned short* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned sign = x[i] >> 16 & 0x8000u, rest = x[i] & 0x7fffffffu, result = 0;
  if (rest > 0x7f800000u) {
    result = 0x7e00u;
  } else if (rest >= 0x47800000u) {
    result = 0x7c00u;
  } else if (rest >= 0x38800000u) {
    unsigned bits = rest - 0x38000000u;
    result = (bits + 0xfffu + (bits >> 13 & 1u)) >> 13;
  } else if (rest >= 0x33000000u) {
    unsigned shift = 126u - (rest >> 23), whole = (rest & 0x7fffffu) | 0x800000u;
    unsigned half = 1u << (shift - 1), kept = whole >> shift, lost = whole & (2u * half - 1u);
    result = kept + (lost > half || (lost == half && (kept & 1u)));
  }
  y[i] = (unsigned short)(sign | result);
}
