// Copies operands before the product, for which their rows are not as it needs them: a launch of its own.
//
// Rows of a copy are a multiple of 16 bytes apart. A copy may be the transpose, and may have more rows
// and longer ones than the operand; what it has beyond that is 0.
//
// Besides those of tiles.cu, the constants of this text are, for A (and for B alike):
//   A_STORED_HEIGHT, A_STORED_LENGTH   rows of all matrices together, and the elements of a row
//   A_STORED_ROW       distance in elements between rows
//   A_COPY_HEIGHT, A_COPY_ROW   rows of the copy, and the distance between them; 0 if there is no copy
//   A_COPY_TURNED      whether the copy is the transpose
//   PIECES_OF_THREAD   pieces of 16 bytes that a thread copies where it is not

#if A_COPY_ROW || B_COPY_ROW
constexpr int COPYING = 256;  // threads of a block
[[maybe_unused]] constexpr int SQUARE = 32;  // the side of what a block transposes, by 8 of its rows at once

constexpr int __host__ __device__ largest_unit(int bytes) { return bytes % 16 == 0 ? 16 : bytes & -bytes; }

// Copy `HEIGHT` rows of `LENGTH` elements that are DISTANCE apart to TO_HEIGHT rows that are TO_ROW apart.
template <int HEIGHT, int LENGTH, int DISTANCE, int TO_HEIGHT, int TO_ROW>
__device__ void copy_aligned(const Element* __restrict__ from, Element* __restrict__ to) {
  constexpr int UNIT = largest_unit(DISTANCE * sizeof(Element)), PIECES = TO_ROW / PIECE_ELEMENTS;
  constexpr unsigned COUNT = static_cast<unsigned>(TO_HEIGHT) * PIECES;
  unsigned first = blockIdx.x * PIECES_OF_THREAD * COPYING + threadIdx.x;
  uint4 low[PIECES_OF_THREAD] = {}, high[PIECES_OF_THREAD] = {};  // all are read before one is written
  int shift[PIECES_OF_THREAD], left[PIECES_OF_THREAD];
#pragma unroll
  for (int k = 0; k < PIECES_OF_THREAD; ++k) {
    unsigned i = first + k * COPYING;
    int row = i / PIECES, column = i % PIECES * PIECE_ELEMENTS;
    unsigned place = row * DISTANCE + column;
    shift[k] = place % PIECE_ELEMENTS;
    left[k] = row < HEIGHT ? LENGTH - column : 0;
    if (left[k] <= 0) continue;
    low[k] = read_piece<HEIGHT * DISTANCE, true>(from, place / PIECE_ELEMENTS);
    if (UNIT < 16 && shift[k] + min(left[k], PIECE_ELEMENTS) > PIECE_ELEMENTS) {
      high[k] = read_piece<HEIGHT * DISTANCE, true>(from, place / PIECE_ELEMENTS + 1);
    }
  }
#pragma unroll
  for (int k = 0; k < PIECES_OF_THREAD; ++k) {
    unsigned i = first + k * COPYING;
    if (i >= COUNT) break;
    uint4 piece = low[k];
    if (UNIT < 16) piece = shifted<UNIT>(low[k], high[k], shift[k] * sizeof(Element));
    if (left[k] < PIECE_ELEMENTS) piece = beginning(piece, left[k] * static_cast<int>(sizeof(Element)));
    reinterpret_cast<uint4*>(to)[i] = piece;
  }
}

// Copy the transpose of such rows in the same way, of which TO_HEIGHT and TO_ROW are the sizes.
template <int HEIGHT, int LENGTH, int DISTANCE, int TO_HEIGHT, int TO_ROW>
__device__ void copy_turned(const Element* __restrict__ from, Element* __restrict__ to) {
  __shared__ Element square[SQUARE][SQUARE + 1];  // columns have no bank conflicts
  constexpr int DOWN = (TO_HEIGHT + SQUARE - 1) / SQUARE, ACROSS = (TO_ROW + SQUARE - 1) / SQUARE;
  if (blockIdx.x >= DOWN * ACROSS) return;
  int to_row = blockIdx.x % DOWN * SQUARE, row = blockIdx.x / DOWN * SQUARE;
  int along = threadIdx.x % SQUARE, first = threadIdx.x / SQUARE;
#pragma unroll
  for (int i = first; i < SQUARE; i += COPYING / SQUARE) {
    bool there = row + i < HEIGHT && to_row + along < LENGTH;
    square[i][along] = there ? from[1LL * (row + i) * DISTANCE + to_row + along] : Element(0.0f);
  }
  __syncthreads();
#pragma unroll
  for (int i = first; i < SQUARE; i += COPYING / SQUARE) {
    if (to_row + i < TO_HEIGHT && row + along < TO_ROW) {
      to[1LL * (to_row + i) * TO_ROW + row + along] = square[along][i];
    }
  }
}

template <bool TURNED, int HEIGHT, int LENGTH, int DISTANCE, int TO_HEIGHT, int TO_ROW>
__device__ void copy_matrix(const Element* __restrict__ from, Element* __restrict__ to) {
  if constexpr (TURNED) {
    copy_turned<HEIGHT, LENGTH, DISTANCE, TO_HEIGHT, TO_ROW>(from, to);
  } else {
    copy_aligned<HEIGHT, LENGTH, DISTANCE, TO_HEIGHT, TO_ROW>(from, to);
  }
}

extern "C" __global__ void __launch_bounds__(COPYING) gemm_copy(
#if A_COPY_ROW
    const Element* __restrict__ A, Element* __restrict__ a_copy
#endif
#if A_COPY_ROW && B_COPY_ROW
    ,
#endif
#if B_COPY_ROW
    const Element* __restrict__ B, Element* __restrict__ b_copy
#endif
) {
#if A_COPY_ROW
  if (blockIdx.y == 0) {
    copy_matrix<A_COPY_TURNED, A_STORED_HEIGHT, A_STORED_LENGTH, A_STORED_ROW, A_COPY_HEIGHT,
                A_COPY_ROW>(A, a_copy);
  }
#endif
#if B_COPY_ROW
  if (blockIdx.y + 1 == gridDim.y) {
    copy_matrix<B_COPY_TURNED, B_STORED_HEIGHT, B_STORED_LENGTH, B_STORED_ROW, B_COPY_HEIGHT,
                B_COPY_ROW>(B, b_copy);
  }
#endif
}
#endif
