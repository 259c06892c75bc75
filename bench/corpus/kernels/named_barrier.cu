// Two halves of a block smooth a row each, with a barrier of their own in PTX.
__device__ void meet(int half) { asm volatile("bar.sync %0, 64;" ::"r"(half + 1) : "memory"); }

__global__ void named_barrier(const float* x, float* y, int rounds) {
  __shared__ float line[2][64];
  const int half = threadIdx.x / 64, t = threadIdx.x % 64, row = blockIdx.x * 2 + half;
  float own = x[row * 64 + t];
  for (int r = 0; r < rounds - half; ++r) {
    line[half][t] = own;
    meet(half);
    own = 0.5f * own + 0.5f * line[half][63 - t];
    meet(half);
  }
  y[row * 64 + t] = own + line[half][t ^ 1];
}
