// How threads copy tiles to shared memory, by 16 bytes or less at once.
//
// Besides those of tiles.cu, the constants of this text are:
//   LDA, LDB           distances in elements between the stored rows of A and B
//   A_WIDTH, B_WIDTH   elements that can be copied at once, as the alignment of rows allows
//   ASYNCHRONOUS       whether they are copied past the registers (cp.async, from sm_80 on)

constexpr bool ALL_K = K % TILE_K == 0;

#if ASYNCHRONOUS
// Copy BYTES past the registers, of which the first `valid` exist; the others become 0.
template <int BYTES>
__device__ void copy_async(void* to, const void* from, int valid) {
  unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  if (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(address), "l"(from), "r"(valid) : "memory");
  } else if (BYTES == 8) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
                 :: "r"(address), "l"(from), "r"(valid) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                 :: "r"(address), "l"(from), "r"(valid) : "memory");
  }
}
#endif

// Copy WIDTH elements to shared memory, of which the first `valid` exist; the others become 0.
template <int WIDTH>
__device__ void copy(Element* to, const Element* from, int valid) {
  constexpr int BYTES = WIDTH * sizeof(Element);
#if ASYNCHRONOUS
  if (BYTES >= 4) {
    copy_async<BYTES>(to, from, valid * static_cast<int>(sizeof(Element)));
    return;
  }
#endif
  if (valid == WIDTH) {
    using Type = typename Piece<BYTES>::Type;
    *reinterpret_cast<Type*>(to) = *reinterpret_cast<const Type*>(from);
  } else {
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) to[i] = i < valid ? from[i] : Element(0.0f);
  }
}

__device__ constexpr int common_divisor(int a, int b) { return b ? common_divisor(b, a % b) : a; }

// Copy HEIGHT rows of LENGTH elements, of which `rows` and `columns` are in the matrix: all of them
// where tiles divide it (ALL_ROWS, ALL_COLUMNS). Rows are DISTANCE apart, in shared memory TO_ROW.
//
// The pieces that a thread copies are constant distances apart: it needs the address of the first.
template <int HEIGHT, int LENGTH, int WIDTH, int DISTANCE, int TO_ROW, bool ALL_ROWS,
          bool ALL_COLUMNS>
__device__ void copy_rows(Element* to, const Element* from, int rows, int columns) {
  constexpr int ALONG = common_divisor(THREADS, LENGTH / WIDTH), DOWN = THREADS / ALONG;
  int first_row = threadIdx.x / ALONG, first_column = threadIdx.x % ALONG * WIDTH;
  const Element* first = from + first_row * DISTANCE + first_column;
  to += first_row * TO_ROW + first_column;
#pragma unroll
  for (int row = 0; row < HEIGHT; row += DOWN) {
    if (HEIGHT % DOWN != 0 && first_row + row >= HEIGHT) continue;
#pragma unroll
    for (int column = 0; column < LENGTH; column += ALONG * WIDTH) {
      int valid = ALL_COLUMNS ? WIDTH : min(max(columns - first_column - column, 0), WIDTH);
      if (!ALL_ROWS && first_row + row >= rows) valid = 0;
      bool any = (ALL_ROWS && ALL_COLUMNS) || valid;
      copy<WIDTH>(&to[row * TO_ROW + column], any ? first + row * DISTANCE + column : from, valid);
    }
  }
}

// Copy rows as copy_rows does, element by element, and transpose them: in shared memory, columns of
// HEIGHT elements are TO_COLUMN apart.
//
// A warp copies ALONG elements of each of several rows at once. Where TO_COLUMN is four more than a
// multiple of 32, eight columns of four rows go to different banks. Where ALONG is more than eight, a
// warp has fewer rows, and each further eight columns have the rows of a group of four exchanged, so that
// they go to the banks of the rows that it lacks: row `r` is kept in place of `r ^ exchange(column)`.
template <int ALONG>
__device__ constexpr int exchange(int column) {
  return column % ALONG / 8 * (32 / ALONG);
}

template <int HEIGHT, int LENGTH, int DISTANCE, int TO_COLUMN, int MOST_ALONG, bool ALL_ROWS,
          bool ALL_COLUMNS>
__device__ void copy_transposed(Element* to, const Element* from, int rows, int columns) {
  constexpr int ALONG = common_divisor(MOST_ALONG, LENGTH), DOWN = THREADS / ALONG;
  static_assert(ALONG <= 8 || DOWN % 4 == 0, "rows that are exchanged must be copied at once");
  int first_row = threadIdx.x / ALONG, first_column = threadIdx.x % ALONG;
  const Element* first = from + first_row * DISTANCE + first_column;
  to += first_column * TO_COLUMN + (first_row ^ exchange<ALONG>(first_column));
#pragma unroll
  for (int row = 0; row < HEIGHT; row += DOWN) {
    if (HEIGHT % DOWN != 0 && first_row + row >= HEIGHT) continue;
#pragma unroll
    for (int column = 0; column < LENGTH; column += ALONG) {
      bool valid = (ALL_ROWS || first_row + row < rows) &&
                   (ALL_COLUMNS || first_column + column < columns);
      copy<1>(&to[column * TO_COLUMN + row], valid ? first + row * DISTANCE + column : from, valid);
    }
  }
}
