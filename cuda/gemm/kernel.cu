// The kernel of templates whose threads copy what they multiply: the tiles of a block, step by step.
//
// A template defines its Sums; multiply, which adds the products of all steps; add_slices, where warps
// share elements; and store, which applies an end (end.cu), and may overwrite the stages. It also defines how A and B are kept in shared memory: whether A is by
// columns (A_BY_COLUMNS) and B by rows (B_BY_ROWS), as they are at least where they are stored so, and
// the distances of these columns or rows (A_ROW, B_ROW), and the elements of A in a stage (A_STAGE); how
// many elements of a row neighbouring threads copy where they turn an operand (TURNED_ALONG); and how many
// blocks the compiler is asked to leave registers for (LEAST_BLOCKS), or 0. With SPREAD, it copies parts of the
// next step between its multiplications (Steps::fill), instead of all at the beginning of a step.

constexpr int B_STAGE = (B_BY_ROWS ? TILE_K : TILE_N) * B_ROW;

__device__ void commit() {
#if ASYNCHRONOUS
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Wait until all but the latest `others` steps are in shared memory, for all threads.
template <int OTHERS>
__device__ void wait() {
#if ASYNCHRONOUS
  asm volatile("cp.async.wait_group %0;" :: "n"(OTHERS) : "memory");
#endif
  __syncthreads();
}

__device__ Place place_of_part(int i) {
  return {i / TILE_N, i % TILE_N, 0, 0};
}

struct Stage {
  const Element *a, *b;
};

// How the steps of an operand are copied, of which the tile has SIDE rows or columns of C. It is stored ALONG_K
// if a row has products of the same row or column of C, which is also how it is kept unless it is TURNED.
template <bool ALONG_K, bool TURNED, int SIDE, int WIDTH, int DISTANCE, int TO_ROW, bool ALL_LINES,
          bool ALL_DEPTH>
struct OperandCopies {
  static constexpr bool TURNS = ALONG_K && TURNED;
  static constexpr int HEIGHT = ALONG_K ? SIDE : TILE_K, LENGTH = ALONG_K ? TILE_K : SIDE;
  using Own = Shares<HEIGHT, LENGTH, TURNS ? 1 : WIDTH, TURNS ? TURNED_ALONG : THREADS>;

  // The thread's first places in a stage and in the matrix, from the tile's first ones.
  __device__ static SharedPlace first_to(Element* to) {
    int row = Own::row(), column = Own::column();
    to += TURNS ? column * TO_ROW + (row ^ exchange<Own::ALONG>(column)) : row * TO_ROW + column;
    return {to, static_cast<unsigned>(__cvta_generic_to_shared(to))};
  }
  __device__ static const Element* first_from(const Element* from) {
    return from + Own::row() * DISTANCE + Own::column();
  }

  // Copy a part of a step. The matrix has `lines` of the rows or columns of C, and `depth` products, from
  // the tile's first ones on. Nearly all steps have all of their products, and most tiles all of their lines:
  // what they copy need not be asked piece by piece whether it exists. Between parts, no branch shall be.
  template <int PARTS>
  __device__ static void copy(SharedPlace to, const Element* from, const Element* valid_from, int lines,
                              int depth, int part, bool wanted) {
    if (PARTS > 1 || (!ALL_DEPTH && depth < TILE_K)) {
      copy<ALL_LINES, ALL_DEPTH, PARTS>(to, from, valid_from, lines, depth, part, wanted);
    } else if (ALONG_K && lines >= SIDE) {
      copy<true, true, PARTS>(to, from, valid_from, lines, depth, part, wanted);
    } else {
      copy<ALL_LINES, true, PARTS>(to, from, valid_from, lines, depth, part, wanted);
    }
  }

  template <bool EVERY_LINE, bool EVERY_DEPTH, int PARTS>
  __device__ static void copy(SharedPlace to, const Element* from, const Element* valid_from, int lines,
                              int depth, int part, bool wanted) {
    constexpr bool ALL_ROWS = ALONG_K ? EVERY_LINE : EVERY_DEPTH;
    constexpr bool ALL_COLUMNS = ALONG_K ? EVERY_DEPTH : EVERY_LINE;
    int rows = ALONG_K ? lines : depth, columns = ALONG_K ? depth : lines;
    if constexpr (TURNS) {
      copy_transposed<HEIGHT, LENGTH, DISTANCE, TO_ROW, TURNED_ALONG, ALL_ROWS, ALL_COLUMNS, PARTS>(
          to, from, valid_from, rows, columns, part, wanted);
    } else {
      copy_rows<HEIGHT, LENGTH, WIDTH, DISTANCE, TO_ROW, ALL_ROWS, ALL_COLUMNS, PARTS>(
          to, from, valid_from, rows, columns, part, wanted);
    }
  }
};

using CopiesOfA = OperandCopies<!A_TRANSPOSED, A_BY_COLUMNS, TILE_M, A_WIDTH, LDA, A_ROW,
                                ALL_M || A_WHOLE, ALL_K || A_WHOLE>;
using CopiesOfB = OperandCopies<B_TRANSPOSED, B_BY_ROWS, TILE_N, B_WIDTH, LDB, B_ROW,
                                ALL_N || B_WHOLE, ALL_K || B_WHOLE>;

// Keep the compiler from adding what is constant in a loop to each of the places that follow from this one,
// which takes a register for each of them.
__device__ __forceinline__ void hide(SharedPlace& to, const Element*& from) {
  asm volatile("" : "+r"(to.address), "+l"(from));
}

// Steps of a tile on their way through the stages. While one is multiplied, the copies of the next
// STAGES - 1 are under way.
struct Steps {
  Element *a_stages, *b_stages;
  const Element *a, *b;         // what is copied next
  int rows, columns, depth;     // of the matrices, from there on
  int left;                     // steps that are not copied yet
  int filled = 0, taken = 0;    // the next stage to fill, and to take
  SharedPlace a_to, b_to;       // the first places in it of this thread
  const Element *a_from, *b_from;   // and those in the matrices

  __device__ Steps(uint4* memory, const Element* A, const Element* B, Place place, int begin,
                   int end)
      : a_stages(reinterpret_cast<Element*>(memory)),
        b_stages(a_stages + STAGES * A_STAGE),
        a(A + matrix_of(place) * (A_TRANSPOSED ? K : M) * LDA +
          (A_TRANSPOSED ? begin * TILE_K * LDA + place.row : place.row * LDA + begin * TILE_K)),
        b(B + place.product * (B_TRANSPOSED ? N : K) * LDB +
          (B_TRANSPOSED ? place.column * LDB + begin * TILE_K
                        : begin * TILE_K * LDB + place.column)),
        rows(place.end - place.row),
        columns(N - place.column),
        depth(K - begin * TILE_K),
        left(end - begin) {
#pragma unroll
    for (int ahead = 0; ahead < STAGES - 1; ++ahead) fill();
  }

  // Begin to copy one of PARTS of the next step, if there is one. With the last part, it has begun.
  template <int PARTS = 1>
  __device__ void fill(int part = 0) {
    if (part == 0) {
      a_to = CopiesOfA::first_to(a_stages + filled * A_STAGE);
      b_to = CopiesOfB::first_to(b_stages + filled * B_STAGE);
      a_from = CopiesOfA::first_from(a);
      b_from = CopiesOfB::first_from(b);
      if (PARTS > 1) {
        hide(a_to, a_from);
        hide(b_to, b_from);
      }
    }
    // A branch for each part would keep the compiler from mixing what is before and after it.
    bool wanted = left > 0;
    if (PARTS > 1 || wanted) {
      CopiesOfA::copy<PARTS>(a_to, a_from, a, rows, depth, part, wanted);
      CopiesOfB::copy<PARTS>(b_to, b_from, b, columns, depth, part, wanted);
    }
    if (part + 1 < PARTS) return;
    commit();
    --left;
    a += A_TRANSPOSED ? TILE_K * LDA : TILE_K;
    b += B_TRANSPOSED ? TILE_K : TILE_K * LDB;
    depth -= TILE_K;
    filled = after(filled);
  }

  // Wait for the next step. All threads have read the one before, whose stage is filled again.
  __device__ Stage next() {
    wait<STAGES - 2>();
    if (!SPREAD) fill();
    Stage stage = {a_stages + taken * A_STAGE, b_stages + taken * B_STAGE};
    taken = after(taken);
    return stage;
  }

  __device__ static int after(int stage) { return stage + 1 == STAGES ? 0 : stage + 1; }
};

extern "C" __global__ void __launch_bounds__(THREADS, LEAST_BLOCKS)
#if TILE_BLOCKS > 1
    __cluster_dims__(TILE_BLOCKS, 1, 1)
#endif
    gemm(const Element* __restrict__ A, const Element* __restrict__ B,
#if WITH_BIAS
         const Element* __restrict__ bias,
#endif
#if WITH_RESIDUAL
         const Element* __restrict__ residual,
#endif
         Element* __restrict__ C
#if SHARED_TILES
         , float* __restrict__ parts
#endif
    ) {
  extern __shared__ uint4 memory[];
#if TILE_BLOCKS > 1
  int first = blockIdx.x / TILE_BLOCKS * STEPS + STEPS * own_part() / TILE_BLOCKS;
  int last = blockIdx.x / TILE_BLOCKS * STEPS + STEPS * (own_part() + 1) / TILE_BLOCKS;
#else
  int block = blockIdx.x, first = first_step(block), last = first_step(block + 1);
#endif
  for (int now = first; now < last;) {
    int tile = now / STEPS, begin = now % STEPS, end = min(STEPS, begin + last - now);
    Place place = place_of(tile);
    Sums sums = {};
    Steps steps(memory, A, B, place, begin, end);
    multiply(sums, steps, end - begin);
    add_slices(sums, memory);
    bool whole = begin == 0 && end == STEPS;
    if (!SHARED_TILES || whole) {
      store<ALL_M && ALL_N>(C + place_in_c(place), LDC, place.end - place.row, N - place.column,
                            sums, end_at(place, BIAS, RESIDUAL), memory);
    }
#if SHARED_TILES
    // A block has at most one tile that others have begun, and one that others finish.
    if (!whole) {
      store<true>(parts + part_of(block, 0, begin == 0), TILE_N, TILE_M, TILE_N, sums,
                  NoEnd{}, memory);
    }
#endif
    now += end - begin;
    __syncthreads();  // the next tile's first copies overwrite what was read last
  }
#if TILE_BLOCKS > 1
  wait_for_cluster();  // others have read what this block has left
#endif
}
