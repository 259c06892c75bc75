// Softmax of each row, a block a row, with CUB's reductions.
#include <cub/block/block_reduce.cuh>

struct Larger {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

template <int THREADS>
__device__ void softmax_row(const float* x, float* y, int columns) {
  using Reduce = cub::BlockReduce<float, THREADS>;
  __shared__ typename Reduce::TempStorage space;
  __shared__ float shared_most, shared_sum;
  float most = -INFINITY;
  for (int c = threadIdx.x; c < columns; c += THREADS) most = fmaxf(most, x[c]);
  most = Reduce(space).Reduce(most, Larger());
  if (threadIdx.x == 0) shared_most = most;
  __syncthreads();
  most = shared_most;
  float sum = 0.0f;
  for (int c = threadIdx.x; c < columns; c += THREADS) sum += expf(x[c] - most);
  sum = Reduce(space).Sum(sum);
  if (threadIdx.x == 0) shared_sum = sum;
  __syncthreads();
  float scale = 1.0f / shared_sum;
  for (int c = threadIdx.x; c < columns; c += THREADS) y[c] = expf(x[c] - most) * scale;
}

__global__ void cub_softmax(const float* x, float* y, int columns) {
  softmax_row<128>(x + blockIdx.x * columns, y + blockIdx.x * columns, columns);
}
