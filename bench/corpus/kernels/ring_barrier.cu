// Sums of rows: two warps bring tiles of 64 elements to a ring of two, two others add them up. Barriers
// say when a stage is full and when it is free.
#include <cuda/barrier>
#define TILE 64
#define STAGES 2

using Barrier = cuda::barrier<cuda::thread_scope_block>;

__global__ void ring_barrier(const float* x, float* y, int columns) {
  __shared__ float ring[STAGES][TILE];
  __shared__ float parts[2];
#pragma nv_diag_suppress static_var_with_dynamic_init
  __shared__ Barrier full[STAGES], free_again[STAGES];
  int t = threadIdx.x, tiles = (columns + TILE - 1) / TILE;
  if (t < STAGES) {
    init(&full[t], blockDim.x);
    init(&free_again[t], blockDim.x);
  }
  __syncthreads();
  const float* row = x + blockIdx.x * columns;
  if (t < TILE) {
    for (int s = 0; s < STAGES; s++) (void)free_again[s].arrive();
  }
  if (t >= TILE) {
    int own = t - TILE;
    for (int i = 0; i < tiles; i++) {
      int s = i % STAGES, at = i * TILE + own;
      free_again[s].arrive_and_wait();
      ring[s][own] = at < columns ? row[at] : 0.0f;
      (void)full[s].arrive();
    }
  } else {
    float sum = 0.0f;
    for (int i = 0; i < tiles; i++) {
      int s = i % STAGES;
      full[s].arrive_and_wait();
      sum += ring[s][t];
      (void)free_again[s].arrive();
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(0xffffffffu, sum, step);
    if (t % 32 == 0) parts[t / 32] = sum;
  }
  __syncthreads();
  if (t == 0) y[blockIdx.x] = parts[0] + parts[1];
}
