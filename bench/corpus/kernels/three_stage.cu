// Products of rows in tiles of 64 that arrive two tiles ahead; a group is committed in each round, empty ones at the end.
#include <cuda_pipeline.h>
#define STAGES 3
#define STEP 64

__global__ void three_stage(const float* a, const float* b, float* y, int k) {
  __shared__ alignas(16) float left[STAGES][STEP], right[STAGES][STEP];
  const int t = threadIdx.x, tiles = k / STEP;
  const float* ra = a + (size_t)blockIdx.x * k;
  const float* rb = b + (size_t)blockIdx.x * k;
  auto load = [&](int tile) {
    if (tile < tiles && t < STEP / 4) {
      __pipeline_memcpy_async(&left[tile % STAGES][t * 4], ra + tile * STEP + t * 4, 16);
      __pipeline_memcpy_async(&right[tile % STAGES][t * 4], rb + tile * STEP + t * 4, 16);
    }
    __pipeline_commit();
  };
  load(0);
  load(1);
  float s = 0.f;
  for (int tile = 0; tile < tiles; ++tile) {
    __pipeline_wait_prior(1);
    __syncthreads();
    load(tile + 2);
    s += left[tile % STAGES][t] * right[tile % STAGES][t];
  }
  __shared__ float part[2];
  for (int m = 16; m; m >>= 1) s += __shfl_xor_sync(0xffffffff, s, m);
  if (t % 32 == 0) part[t / 32] = s;
  __syncthreads();
  if (t == 0) y[blockIdx.x] = part[0] + part[1];
}
