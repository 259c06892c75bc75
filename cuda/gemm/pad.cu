// Copies the operands whose rows a tensor map cannot describe, so that these are a multiple of 16 bytes
// apart: a launch of its own, before that of the product.
//
// Besides those of tiles.cu, the constants of this text are:
//   LDA, LDB             distances in elements between the stored rows of A and B
//   A_PADDED, B_PADDED   the same distances in the copies, or 0 where there is no copy
//   PIECES_OF_THREAD     pieces of four bytes that a thread copies: a warp copies 128 bytes at once

#if A_PADDED || B_PADDED
template <int ROWS_COPIED, int LENGTH, int DISTANCE, int TO_ROW>
__device__ void pad_rows(const Element* __restrict__ from, Element* __restrict__ to) {
  constexpr int PIECE = 4 / sizeof(Element), PIECES = (LENGTH + PIECE - 1) / PIECE;
  constexpr unsigned COUNT = static_cast<unsigned>(ROWS_COPIED) * PIECES;
  unsigned first = blockIdx.x * PIECES_OF_THREAD * 256 + threadIdx.x;
  alignas(4) Element pieces[PIECES_OF_THREAD][PIECE];  // all are read before one is written
#pragma unroll
  for (int k = 0; k < PIECES_OF_THREAD; ++k) {
    unsigned i = first + k * 256;
    int row = i / PIECES, column = i % PIECES * PIECE;
#pragma unroll
    for (int j = 0; j < PIECE; ++j) {
      pieces[k][j] = i < COUNT && column + j < LENGTH ? from[row * DISTANCE + column + j]
                                                      : Element(0.0f);
    }
  }
#pragma unroll
  for (int k = 0; k < PIECES_OF_THREAD; ++k) {
    unsigned i = first + k * 256;
    if (i >= COUNT) continue;
    *reinterpret_cast<unsigned*>(to + 1LL * (i / PIECES) * TO_ROW + i % PIECES * PIECE) =
        *reinterpret_cast<const unsigned*>(pieces[k]);
  }
}

extern "C" __global__ void __launch_bounds__(256) gemm_pad(
#if A_PADDED
    const Element* __restrict__ A, Element* __restrict__ a_rows
#endif
#if A_PADDED && B_PADDED
    ,
#endif
#if B_PADDED
    const Element* __restrict__ B, Element* __restrict__ b_rows
#endif
) {
#if A_PADDED
  if (blockIdx.y == 0) {
    constexpr int MATRICES = GROUPED ? 1 : PRODUCTS;
    pad_rows<MATRICES * (A_TRANSPOSED ? K : M), A_TRANSPOSED ? M : K, LDA, A_PADDED>(A, a_rows);
  }
#endif
#if B_PADDED
  if (blockIdx.y + 1 == gridDim.y) {
    pad_rows<PRODUCTS * (B_TRANSPOSED ? N : K), B_TRANSPOSED ? K : N, LDB, B_PADDED>(B, b_rows);
  }
#endif
}
#endif
