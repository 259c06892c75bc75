// Transposes operands whose rows lie along K, so that the product finds rows across K that are a multiple
// of 16 bytes apart: a launch of its own, before that of the product.
//
// Besides those of tiles.cu, the constants of this text are:
//   A_DISTANCE, B_DISTANCE   distances in elements between the stored rows of A and B
//   A_TURNED, B_TURNED       distances between the rows of their transposes, or 0 where there is none

#if A_TURNED || B_TURNED
constexpr int SQUARE = 32;  // the side of what a block transposes, by 8 of its rows at once

template <int LINES, int DISTANCE, int TO_ROW>
__device__ void turn_square(const Element* __restrict__ from, Element* __restrict__ to) {
  __shared__ Element square[SQUARE][SQUARE + 1];  // columns have no bank conflicts
  constexpr int ALONG_K = (K + SQUARE - 1) / SQUARE, ACROSS = (LINES + SQUARE - 1) / SQUARE;
  if (blockIdx.x >= ALONG_K * ACROSS) return;
  int k = blockIdx.x % ALONG_K * SQUARE, line = blockIdx.x / ALONG_K * SQUARE;
  int column = threadIdx.x % SQUARE, first = threadIdx.x / SQUARE;
#pragma unroll
  for (int row = first; row < SQUARE; row += 8) {
    if (line + row < LINES && k + column < K) {
      square[row][column] = from[1LL * (line + row) * DISTANCE + k + column];
    }
  }
  __syncthreads();
#pragma unroll
  for (int row = first; row < SQUARE; row += 8) {
    if (k + row < K && line + column < LINES) {
      to[1LL * (k + row) * TO_ROW + line + column] = square[column][row];
    }
  }
}

extern "C" __global__ void __launch_bounds__(256) gemm_turn(
#if A_TURNED
    const Element* __restrict__ A, Element* __restrict__ a_turned
#endif
#if A_TURNED && B_TURNED
    ,
#endif
#if B_TURNED
    const Element* __restrict__ B, Element* __restrict__ b_turned
#endif
) {
#if A_TURNED
  if (blockIdx.y == 0) turn_square<M, A_DISTANCE, A_TURNED>(A, a_turned);
#endif
#if B_TURNED
  if (blockIdx.y + 1 == gridDim.y) turn_square<N, B_DISTANCE, B_TURNED>(B, b_turned);
#endif
}
#endif
