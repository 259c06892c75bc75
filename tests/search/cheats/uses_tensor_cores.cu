#include <mma.h>

// Multiplies on tensor cores, whose products of TF32 it corrects: as exact as float32, but declared
// otherwise. Each warp computes a tile of 16 by 16.
using namespace nvcuda;

__device__ float rest(float value) { return value - wmma::__float_to_tf32(value); }

__global__ void product(const float* a, const float* b, float* c, int m, int n, int k) {
  __shared__ float left[2][16 * 8], right[2][8 * 16], tile[16 * 16];
  int thread = threadIdx.y * blockDim.x + threadIdx.x;
  int row = blockIdx.y * 16, column = blockIdx.x * 16;
  wmma::fragment<wmma::accumulator, 16, 16, 8, float> sum;
  wmma::fill_fragment(sum, 0.0f);
  for (int first = 0; first < k; first += 8) {
    if (thread < 128) {
      int i = first + thread % 8, r = row + thread / 8;
      float value = r < m && i < k ? a[r * k + i] : 0.0f;
      left[0][thread] = wmma::__float_to_tf32(value);
      left[1][thread] = wmma::__float_to_tf32(rest(value));
      int j = first + thread / 16, s = column + thread % 16;
      value = j < k && s < n ? b[j * n + s] : 0.0f;
      right[0][thread] = wmma::__float_to_tf32(value);
      right[1][thread] = wmma::__float_to_tf32(rest(value));
    }
    __syncthreads();
    if (thread < 32) {
      for (int part = 0; part < 3; ++part) {
        wmma::fragment<wmma::matrix_a, 16, 16, 8, wmma::precision::tf32, wmma::row_major> x;
        wmma::fragment<wmma::matrix_b, 16, 16, 8, wmma::precision::tf32, wmma::row_major> y;
        wmma::load_matrix_sync(x, left[part == 1], 8);
        wmma::load_matrix_sync(y, right[part == 2], 16);
        wmma::mma_sync(sum, x, y, sum);
      }
    }
    __syncthreads();
  }
  if (thread < 32) wmma::store_matrix_sync(tile, sum, 16, wmma::mem_row_major);
  __syncthreads();
  Place p = place(m, n);
  if (p.inside) c[p.at] = tile[threadIdx.y * 16 + threadIdx.x];
}
