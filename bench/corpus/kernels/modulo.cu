// The remainder of a division by a positive number, in 0 to divisor - 1 as in Python.
__global__ void modulo(const int* x, int* y, int divisor, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int rest = x[i] % divisor;
  y[i] = rest < 0 ? rest + divisor : rest;
}
