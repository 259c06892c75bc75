#include <cuda_fp16.h>
#include <mma.h>

// x w^T + bias, cut off below zero, on tensor cores: a warp a tile of 16 x 16, whose sums go through
// shared memory.
__global__ void wmma_linear(const __half* x, const __half* w, const float* bias, float* y, int rows,
                            int columns, int inner) {
  using namespace nvcuda;
  __shared__ alignas(32) float tile[4][16 * 16];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int across = columns / 16;
  int number = blockIdx.x * 4 + warp;
  if (number >= rows / 16 * across) return;
  int row = number / across * 16, column = number % across * 16;
  wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> a;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> b;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> c;
  wmma::fill_fragment(c, 0.0f);
  for (int k = 0; k < inner; k += 16) {
    wmma::load_matrix_sync(a, x + row * inner + k, inner);
    wmma::load_matrix_sync(b, w + column * inner + k, inner);
    wmma::mma_sync(c, a, b, c);
  }
  wmma::store_matrix_sync(tile[warp], c, 16, wmma::mem_row_major);
  __syncwarp();
  for (int i = lane; i < 256; i += 32)
    y[(row + i / 16) * columns + column + i % 16] = fmaxf(tile[warp][i] + bias[column + i % 16], 0.0f);
}
