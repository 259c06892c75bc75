// The largest number less the smallest, by variables that the last block sets back for the next launch.
__device__ unsigned least = 0xffffffff, greatest = 0, done = 0;

__device__ unsigned ordered(float f) {
  const unsigned b = __float_as_uint(f);
  return b >> 31 ? ~b : b | 0x80000000u;
}

__device__ float number(unsigned u) { return __uint_as_float(u >> 31 ? u & 0x7fffffffu : ~u); }

__global__ void row_span(const float* x, float* y, int n) {
  __shared__ bool last;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    atomicMin(&least, ordered(x[i]));
    atomicMax(&greatest, ordered(x[i]));
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(&done, 1u) == gridDim.x - 1;
  __syncthreads();
  if (last && threadIdx.x == 0) {
    __threadfence();
    y[0] = number(atomicExch(&greatest, 0u)) - number(atomicExch(&least, 0xffffffffu));
    done = 0;
  }
}
