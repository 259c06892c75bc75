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

// The pieces of a matrix of HEIGHT rows that a thread copies, in rows of PIECES: it stays in its
// column where that is possible, so that all addresses differ from the first by constants.
template <int HEIGHT, int PIECES, class Action>
__device__ void for_each_piece(const Action& act) {
  if (THREADS % PIECES == 0) {
    constexpr int DOWN = THREADS / PIECES > 0 ? THREADS / PIECES : 1;
    int first = threadIdx.x / PIECES, piece = threadIdx.x % PIECES;
#pragma unroll
    for (int row = 0; row < HEIGHT; row += DOWN) {
      if (HEIGHT % DOWN == 0 || first + row < HEIGHT) act(first + row, piece);
    }
  } else {
#pragma unroll
    for (int i = threadIdx.x; i < HEIGHT * PIECES; i += THREADS) act(i / PIECES, i % PIECES);
  }
}

// Copy HEIGHT rows of LENGTH elements, of which `rows` and `columns` are in the matrix: all of them
// where tiles divide it (ALL_ROWS, ALL_COLUMNS).
template <int HEIGHT, int LENGTH, int WIDTH, int TO_ROW, bool ALL_ROWS, bool ALL_COLUMNS>
__device__ void copy_rows(Element* to, const Element* from, int distance, int rows, int columns) {
  for_each_piece<HEIGHT, LENGTH / WIDTH>([=](int row, int piece) {
    int column = piece * WIDTH;
    int valid = ALL_COLUMNS ? WIDTH : min(max(columns - column, 0), WIDTH);
    if (!ALL_ROWS && row >= rows) valid = 0;
    bool any = (ALL_ROWS && ALL_COLUMNS) || valid;
    copy<WIDTH>(&to[row * TO_ROW + column], any ? from + row * distance + column : from, valid);
  });
}
