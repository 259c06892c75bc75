// Blocks of 32 numbers as integers of eight bits with a common power of two: the exponent is that
// of the largest magnitude less six, but not below -100, and the integers are clamped to 127.
__global__ void mx_quantize(const float* x, signed char* q, int* exponent, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float v = i < n ? x[i] : 0.0f;
  float largest = fabsf(v);
  for (int step = 16; step > 0; step /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, step));
  int e = -100;
  if (largest > 0.0f) e = max(ilogbf(largest) - 6, -100);
  if (i < n) {
    q[i] = (signed char)fminf(fmaxf(rintf(ldexpf(v, -e)), -127.0f), 127.0f);
    if (threadIdx.x % 32 == 0) exponent[i / 32] = e;
  }
}
