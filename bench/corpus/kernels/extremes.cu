// Smallest and largest of numbers, by atomics on codes that are ordered as the numbers are.
__device__ unsigned code_of(float v) {
  unsigned bits = __float_as_uint(v);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ float value_of(unsigned code) {
  return __uint_as_float(code & 0x80000000u ? code & 0x7fffffffu : ~code);
}

__global__ void begin(unsigned* codes) {
  codes[0] = 0xffffffffu;
  codes[1] = 0;
}

__global__ void gather_codes(const float* x, unsigned* codes, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float first = x[i < n ? i : n - 1];
  float least = first, most = first;
  for (int step = 16; step > 0; step /= 2) {
    least = fminf(least, __shfl_xor_sync(0xffffffff, least, step));
    most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, step));
  }
  if (threadIdx.x % 32 == 0) {
    atomicMin(&codes[0], code_of(least));
    atomicMax(&codes[1], code_of(most));
  }
}

__global__ void end(const unsigned* codes, float* y) {
  y[0] = value_of(codes[0]);
  y[1] = value_of(codes[1]);
}
