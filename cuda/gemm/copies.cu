// How threads copy tiles to shared memory, by 16 bytes or less at once.
//
// Besides those of tiles.cu, the constants of this text are:
//   LDA, LDB           distances in elements between the stored rows of A and B
//   A_WHOLE, B_WHOLE   whether the matrices have all rows, columns and products of the tiles
//   A_WIDTH, B_WIDTH   elements that can be copied at once, as the alignment of rows allows
//   ASYNCHRONOUS       whether they are copied past the registers (cp.async, from sm_80 on)

[[maybe_unused]] constexpr bool ALL_K = K % TILE_K == 0;

#if ASYNCHRONOUS
// Copy BYTES past the registers, if they are wanted, of which the first `valid` exist; the others become 0.
template <int BYTES>
__device__ void copy_async(unsigned address, const void* from, int valid, bool wanted) {
  if (BYTES == 16) {
    asm volatile(
        "{\n"
        ".reg .pred wanted;\n"
        "setp.ne.b32 wanted, %3, 0;\n"
        "@wanted cp.async.cg.shared.global [%0], [%1], 16, %2;\n"
        "}"
        :: "r"(address), "l"(from), "r"(valid), "r"(static_cast<int>(wanted)) : "memory");
  } else if (BYTES == 8) {
    asm volatile(
        "{\n"
        ".reg .pred wanted;\n"
        "setp.ne.b32 wanted, %3, 0;\n"
        "@wanted cp.async.ca.shared.global [%0], [%1], 8, %2;\n"
        "}"
        :: "r"(address), "l"(from), "r"(valid), "r"(static_cast<int>(wanted)) : "memory");
  } else {
    asm volatile(
        "{\n"
        ".reg .pred wanted;\n"
        "setp.ne.b32 wanted, %3, 0;\n"
        "@wanted cp.async.ca.shared.global [%0], [%1], 4, %2;\n"
        "}"
        :: "r"(address), "l"(from), "r"(valid), "r"(static_cast<int>(wanted)) : "memory");
  }
}
#endif

// A place in shared memory, with its address there.
struct SharedPlace {
  Element* place;
  unsigned address;

  __device__ SharedPlace operator+(int elements) const {
    return {place + elements, address + elements * static_cast<unsigned>(sizeof(Element))};
  }
};

// Copy WIDTH elements to shared memory, if they are wanted, of which the first `valid` exist; the others
// become 0.
template <int WIDTH>
__device__ void copy(SharedPlace to, const Element* from, int valid, bool wanted) {
  constexpr int BYTES = WIDTH * sizeof(Element);
#if ASYNCHRONOUS
  if (BYTES >= 4) {
    copy_async<BYTES>(to.address, from, valid * static_cast<int>(sizeof(Element)), wanted);
    return;
  }
#endif
  if (!wanted) return;
  if (valid == WIDTH) {
    using Type = typename Piece<BYTES>::Type;
    *reinterpret_cast<Type*>(to.place) = *reinterpret_cast<const Type*>(from);
  } else {
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) to.place[i] = i < valid ? from[i] : Element(0.0f);
  }
}

__device__ constexpr int common_divisor(int a, int b) { return b ? common_divisor(b, a % b) : a; }

// How the threads of a block share the copies of HEIGHT rows of LENGTH elements: each copies WIDTH at once,
// of ALONG neighbouring pieces of each of DOWN rows. What it copies are constant distances apart, so that it
// needs the addresses of the first.
template <int HEIGHT, int LENGTH, int WIDTH, int MOST_ALONG = THREADS>
struct Shares {
  static constexpr int ALONG = common_divisor(MOST_ALONG, LENGTH / WIDTH), DOWN = THREADS / ALONG;
  static constexpr int ACROSS = LENGTH / (ALONG * WIDTH), COUNT = (HEIGHT + DOWN - 1) / DOWN * ACROSS;

  __device__ static int row() { return threadIdx.x / ALONG; }
  __device__ static int column() { return threadIdx.x % ALONG * WIDTH; }

  // Whether a copy is in one of PARTS, to which they are assigned evenly.
  template <int PARTS>
  __device__ static constexpr bool in_part(int row, int column, int part) {
    return (row / DOWN * ACROSS + column / (ALONG * WIDTH)) * PARTS / COUNT == part;
  }
};

#if ASYNCHRONOUS
// How many elements lie between a multiple of 16 bytes and this place.
__device__ __forceinline__ int shift_of(const Element* place) {
  return reinterpret_cast<unsigned long long>(place) % 16 / sizeof(Element);
}

// Copy 16 bytes, of which the first `there` elements exist; it may be fewer than none or more than all.
__device__ __forceinline__ void copy_piece(SharedPlace to, const Element* from, int there) {
  constexpr int SIZE = sizeof(Element);
  copy_async<16>(to.address, from, min(max(there, 0), 16 / SIZE) * SIZE, true);
}

// Copy HEIGHT rows of LENGTH elements by 16 bytes at once, each from the multiple of 16 bytes before it on, and one
// piece more of rows that need it. Of them, `rows` and `columns` are in the matrix, or ALL; the others become 0. The
// last COPIERS threads of the block do so: the rows of one are a multiple of WIDTH apart, and thus shifted alike.
template <int COPIERS, int HEIGHT, int LENGTH, int DISTANCE, int TO_ROW, bool ALL>
__device__ void copy_shifted(SharedPlace to, const Element* from, int rows, int columns) {
  constexpr int WIDTH = 16 / sizeof(Element);
  constexpr int ALONG = common_divisor(COPIERS / WIDTH, LENGTH / WIDTH), DOWN = COPIERS / ALONG;
  constexpr bool SHIFTED = DISTANCE % WIDTH != 0 || GROUPED;
  int thread = threadIdx.x - (THREADS - COPIERS), own_row = thread / ALONG, own_column = thread % ALONG * WIDTH;
  const Element *own = from + own_row * DISTANCE, *last = from + thread * DISTANCE;
  int shift = shift_of(own), last_shift = shift_of(last);
  own += own_column - shift;
  last += LENGTH - last_shift;
  int end = ALL ? LENGTH : min(columns, LENGTH);
  SharedPlace own_to = to + (own_row * TO_ROW + own_column), last_to = to + (thread * TO_ROW + LENGTH);
#pragma unroll
  for (int row = 0; row < HEIGHT; row += DOWN) {
    if (HEIGHT % DOWN != 0 && own_row + row >= HEIGHT) continue;
    bool valid = ALL || own_row + row < rows;
#pragma unroll
    for (int column = 0; column < LENGTH; column += ALONG * WIDTH) {
      int there = ALL ? WIDTH : end + shift - own_column - column;
      copy_piece(own_to + (row * TO_ROW + column), own + (row * DISTANCE + column), valid ? there : 0);
    }
  }
#pragma unroll
  for (int row = 0; row < (SHIFTED ? HEIGHT : 0); row += COPIERS) {
    if (HEIGHT % COPIERS != 0 && thread + row >= HEIGHT) continue;
    bool valid = ALL || thread + row < rows;
    copy_piece(last_to + row * TO_ROW, last + row * DISTANCE, valid ? end + last_shift - LENGTH : 0);
  }
}
#endif

// Copy one of PARTS of HEIGHT rows of LENGTH elements, if it is wanted, of which `rows` and `columns` are in the
// matrix: all of them where tiles divide it (ALL_ROWS, ALL_COLUMNS). Rows are DISTANCE apart, in shared memory
// TO_ROW. `to` and `from` are the thread's first places, and `valid_from` is one in the matrix: that of the
// first row and column. With ALL_ROWS, a thread finds out once which of its columns exist.
template <int HEIGHT, int LENGTH, int WIDTH, int DISTANCE, int TO_ROW, bool ALL_ROWS,
          bool ALL_COLUMNS, int PARTS>
__device__ void copy_rows(SharedPlace to, const Element* from, const Element* valid_from, int rows,
                          int columns, int part, bool wanted) {
  using Own = Shares<HEIGHT, LENGTH, WIDTH>;
  int first_row = Own::row(), first_column = Own::column();
  if (ALL_ROWS) valid_from += first_row * DISTANCE;
#pragma unroll
  for (int column = 0; column < LENGTH; column += Own::ALONG * WIDTH) {
    int exist = ALL_COLUMNS ? WIDTH : min(max(columns - first_column - column, 0), WIDTH);
    const Element* of_column = exist ? from + column : valid_from;
#pragma unroll
    for (int row = 0; row < HEIGHT; row += Own::DOWN) {
      if (HEIGHT % Own::DOWN != 0 && first_row + row >= HEIGHT) continue;
      if (!Own::template in_part<PARTS>(row, column, part)) continue;
      bool valid = ALL_ROWS || first_row + row < rows;
      const Element* there = of_column + row * DISTANCE;
      copy<WIDTH>(to + (row * TO_ROW + column), valid ? there : valid_from, valid ? exist : 0, wanted);
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
          bool ALL_COLUMNS, int PARTS>
__device__ void copy_transposed(SharedPlace to, const Element* from, const Element* valid_from, int rows,
                                int columns, int part, bool wanted) {
  using Own = Shares<HEIGHT, LENGTH, 1, MOST_ALONG>;
  static_assert(Own::ALONG <= 8 || Own::DOWN % 4 == 0, "rows that are exchanged must be copied at once");
  int first_row = Own::row(), first_column = Own::column();
  if (ALL_COLUMNS) valid_from += first_column;
#pragma unroll
  for (int row = 0; row < HEIGHT; row += Own::DOWN) {
    if (HEIGHT % Own::DOWN != 0 && first_row + row >= HEIGHT) continue;
    bool exists = ALL_ROWS || first_row + row < rows;
    const Element* of_row = exists ? from + row * DISTANCE : valid_from;
#pragma unroll
    for (int column = 0; column < LENGTH; column += Own::ALONG) {
      if (!Own::template in_part<PARTS>(row, column, part)) continue;
      bool in_row = ALL_COLUMNS || first_column + column < columns;
      copy<1>(to + (column * TO_COLUMN + row), in_row ? of_row + column : valid_from, exists && in_row,
              wanted);
    }
  }
}
