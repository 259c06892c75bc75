// Powers by squaring, modulo numbers of up to 31 bits.
__global__ void mod_power(const unsigned* base, const unsigned* exponent, const int* modulus, unsigned* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned m = modulus[i];
  unsigned long long b = base[i] % m, result = 1 % m;
  for (unsigned e = exponent[i]; e > 0; e >>= 1) {
    if (e & 1) result = result * b % m;
    b = b * b % m;
  }
  y[i] = (unsigned)result;
}
