// Integers in blocks of 48 with a shift in common: bytes, rounded half to even and clamped to -127..127.
__global__ void block_float(const int* x, signed char* code, int* shift, int n) {
  __shared__ unsigned most;
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (threadIdx.x == 0) most = 0;
  __syncthreads();
  const int v = i < n ? x[i] : 0;
  const unsigned size = v < 0 ? 0u - (unsigned)v : (unsigned)v;
  atomicMax(&most, size);
  __syncthreads();
  const int s = max(0, 25 - __clz(most));
  if (threadIdx.x == 0) shift[blockIdx.x] = s;
  if (i < n) {
    const unsigned whole = size >> s, rest = size - (whole << s), half = s ? 1u << (s - 1) : 0;
    unsigned rounded = whole;
    if (s && (rest > half || (rest == half && (whole & 1)))) ++rounded;
    const int clamped = min(rounded, 127u);
    code[i] = v < 0 ? -clamped : clamped;
  }
}
