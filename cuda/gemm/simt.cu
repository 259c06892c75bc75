// C = A B in float32 on CUDA cores.
//
// Besides those of tiles.cu, the constants of this text are:
//   THREAD_M, THREAD_N size of the part of a tile that a thread computes, multiples of 4
//   SLICES             groups of warps that divide the columns of A and rows of B of each step
//   TRANSPOSE_A        if A is stored by rows: 0, or it is transposed on its way to shared memory, and
//                      neighbouring threads copy this many elements of a row. A transposed B is always
//                      transposed back in this way, by at least 8 elements
//   SPREAD             whether the copies of a step are spread between its multiplications: all at once, they
//                      keep shared memory busy while the multiplications wait for it. Sums then also leave their
//                      registers before they are stored (release)
//
// What limits such a kernel beside the multiplications is shared memory: a thread reads THREAD_M +
// THREAD_N elements for THREAD_M * THREAD_N products. They are read 16 bytes at once.
//
// What limits the multiplications themselves are two banks of registers, the even and the odd ones, each
// of which is read once in a cycle. A multiplication needs its sum and two factors, of which one is kept
// from the multiplication before it; so the compiler gives the sum and the other factor registers of
// different banks. It can do so where 16 bytes of A are part of a column. Where they are part of a row,
// the elements of a column are four registers apart, in one bank, and every third multiplication takes a
// cycle more. Hence TRANSPOSE_A, for which elements are copied one by one instead of four at once.
//
// A tile has its sums in the registers of one slice. Where tiles are few or small, several slices
// give a multiprocessor the warps that it needs to be busy, without parts of sums in global memory.

constexpr int THREADS_M = TILE_M / THREAD_M, THREADS_N = TILE_N / THREAD_N;  // of a slice
static_assert(THREADS == THREADS_M * THREADS_N * SLICES, "slices must fill the tile");
constexpr int PIECE = 4;                // elements that a thread reads at once
constexpr int DEPTH = TILE_K / SLICES;  // columns of A and rows of B of a slice in a step
static_assert(DEPTH % PIECE == 0, "rows of A must consist of pieces");
constexpr bool TRANSPOSED_HERE = TRANSPOSE_A && !A_TRANSPOSED;
constexpr bool A_BY_COLUMNS = A_TRANSPOSED || TRANSPOSE_A, B_BY_ROWS = true;
constexpr int TURNED_ALONG = TRANSPOSE_A && (TRANSPOSED_HERE || B_TRANSPOSED) ? TRANSPOSE_A : 8;
static_assert(TURNED_ALONG <= 8 || DEPTH % TURNED_ALONG == 0, "slices must begin with whole copies");
// Each row of A begins at another of the 32 banks of shared memory than the one before where rows are
// kept, and so does each column that is written element by element.
constexpr int A_ROW = TRANSPOSED_HERE ? TILE_M + PIECE
                      : A_TRANSPOSED  ? TILE_M
                                      : TILE_K + (TILE_K % 32 ? 0 : PIECE);
constexpr int B_ROW = TILE_N + (B_TRANSPOSED ? PIECE : 0);
constexpr int A_STAGE = (A_BY_COLUMNS ? TILE_K : TILE_M) * A_ROW;
// The compiler does not know how few blocks shared memory has room for. Left alone, it sometimes saves
// registers for more of them, and then has too few to choose the banks.
constexpr int LEAST_BLOCKS = TRANSPOSED_HERE || B_TRANSPOSED ? 1 : 0;

constexpr int LANES_M = 4, LANES_N = 8;  // of a warp
static_assert(THREADS_M % LANES_M == 0 && THREADS_N % LANES_N == 0, "warps must fill the tile");

// Between so many columns of a step, a part of the next one is copied. Each part takes three instructions more.
constexpr int PARTS_APART = DEPTH / 4, PARTS = (DEPTH - 2) / PARTS_APART + 1;

struct Sums {
  alignas(16) float of[THREAD_M][THREAD_N];
};

// Where this thread is among those of the block.
struct Thread {
  int in_slice = threadIdx.x % (THREADS_M * THREADS_N), slice = threadIdx.x / (THREADS_M * THREADS_N);
  int warp = in_slice / 32, lane = in_slice % 32;
  // Lanes that differ in the last bit read the same of B, those that differ in the bit before the
  // same of A. Shared memory then serves half a warp at once, and a quarter otherwise: NVIDIA does
  // not document this, but CUTLASS arranges its lanes alike.
  int m = warp % (THREADS_M / LANES_M) * LANES_M + lane / 16 * 2 + lane % 2;
  int n = warp / (THREADS_M / LANES_M) * LANES_N + lane / 2 % 8;

  // The row in the tile of a thread's row. What is read at once from a column of A are neighbouring
  // rows; where A is read along its rows, neighbouring lanes have neighbouring rows.
  __device__ int row(int i) const {
    return A_BY_COLUMNS ? i / PIECE * PIECE * THREADS_M + PIECE * m + i % PIECE
                        : i * THREADS_M + m;
  }
  __device__ int column(int j) const {
    return j / PIECE * PIECE * THREADS_N + PIECE * n + j % PIECE;
  }
  // Whether the rest of the kernel is about this row of the thread, rather than another slice's.
  __device__ bool finishes(int i) const { return i / (THREAD_M / SLICES) == slice; }
};

__device__ float4& piece_at(float* place) { return *reinterpret_cast<float4*>(place); }
__device__ const float4& piece_at(const float* place) {
  return *reinterpret_cast<const float4*>(place);
}

// What a thread multiplies at once: its elements of column k of A, a[.][k % PIECE], and of row k of B.
struct Factors {
  alignas(16) float a[THREAD_M][PIECE], b[THREAD_N];
};

// A is read in pieces, which are parts of its columns or of its rows: these have the next columns too.
template <class Stage>
__device__ void read(Factors& factors, const Stage& stage, const Thread& thread, int k) {
  int of_slice = thread.slice * DEPTH + k;
  if (A_BY_COLUMNS) {
    int exchanged = TRANSPOSED_HERE ? exchange<TURNED_ALONG>(k) : 0;
#pragma unroll
    for (int i = 0; i < THREAD_M; i += PIECE) {
      float4 piece = piece_at(&stage.a[of_slice * A_ROW + thread.row(i)]);
      factors.a[i + (0 ^ exchanged)][k % PIECE] = piece.x;
      factors.a[i + (1 ^ exchanged)][k % PIECE] = piece.y;
      factors.a[i + (2 ^ exchanged)][k % PIECE] = piece.z;
      factors.a[i + (3 ^ exchanged)][k % PIECE] = piece.w;
    }
  } else if (k % PIECE == 0) {
#pragma unroll
    for (int i = 0; i < THREAD_M; ++i) {
      piece_at(factors.a[i]) = piece_at(&stage.a[thread.row(i) * A_ROW + of_slice]);
    }
  }
#pragma unroll
  for (int j = 0; j < THREAD_N; j += PIECE) {
    float4 piece = piece_at(&stage.b[of_slice * B_ROW + thread.column(j)]);
    int exchanged = B_TRANSPOSED ? exchange<TURNED_ALONG>(k) : 0;
    factors.b[j + (0 ^ exchanged)] = piece.x;
    factors.b[j + (1 ^ exchanged)] = piece.y;
    factors.b[j + (2 ^ exchanged)] = piece.z;
    factors.b[j + (3 ^ exchanged)] = piece.w;
  }
}

// Back and forth: each product has a factor of the one before, which is not read again.
__device__ void add_products(Sums& sums, const Factors& factors, int k) {
  // Along the shorter side, fewer multiplications wait for a bank of registers, by the machine code. The
  // other kernels keep the order with which they were measured.
  constexpr bool ALONG_N = THREAD_M >= THREAD_N || !(TRANSPOSED_HERE || B_TRANSPOSED);
  constexpr int LINES = ALONG_N ? THREAD_M : THREAD_N, LENGTH = ALONG_N ? THREAD_N : THREAD_M;
#pragma unroll
  for (int line = 0; line < LINES; ++line) {
#pragma unroll
    for (int step = 0; step < LENGTH; ++step) {
      int along = line % 2 ? LENGTH - 1 - step : step;
      int i = ALONG_N ? line : along, j = ALONG_N ? along : line;
      sums.of[i][j] += factors.a[i][k % PIECE] * factors.b[j];
    }
  }
}

// Four sums that are stored at once must be in four neighbouring registers, and so are four factors that were
// read at once: each multiplication then needs a sum and a factor of the same bank. The compiler chooses other
// registers for the sums if it does not store these but results of an instruction.
__device__ void release(Sums& sums) {
  float one = static_cast<float>(gridDim.z);  // not known to the compiler
#pragma unroll
  for (int i = 0; i < THREAD_M; ++i) {
#pragma unroll
    for (int j = 0; j < THREAD_N; ++j) sums.of[i][j] *= one;
  }
}

// Add the products of `count` steps. The factors of a column are read while those before it are
// multiplied, beyond the end of a step too.
template <class Steps>
__device__ void multiply(Sums& sums, Steps& steps, int count) {
  Thread thread;
  Factors factors;
  auto stage = steps.next();
  read(factors, stage, thread, 0);
  while (true) {
#pragma unroll
    for (int k = 0; k < DEPTH - 1; ++k) {
      Factors next = factors;
      read(next, stage, thread, k + 1);
      if (SPREAD && k % PARTS_APART == 0) steps.template fill<PARTS>(k / PARTS_APART);
      add_products(sums, factors, k);
      factors = next;
    }
    if (--count == 0) break;
    stage = steps.next();
    Factors next;
    read(next, stage, thread, 0);
    add_products(sums, factors, DEPTH - 1);
    factors = next;
  }
  add_products(sums, factors, DEPTH - 1);
  if (SPREAD) release(sums);
}

// Add what the slices have. Each gets the sums of the rows that it finishes.
__device__ void add_slices(Sums& sums, void* memory) {
  if (SLICES == 1) return;
  Thread thread;
  float* left = static_cast<float*>(memory) + PIECE * thread.in_slice;
  auto place = [](int slice, int i, int j) {
    return ((slice * THREAD_M + i) * THREAD_N + j) * (THREADS_M * THREADS_N);
  };
  __syncthreads();  // what is overwritten was read
#pragma unroll
  for (int i = 0; i < THREAD_M; ++i) {
    if (thread.finishes(i)) continue;
#pragma unroll
    for (int j = 0; j < THREAD_N; j += PIECE) {
      piece_at(&left[place(thread.slice, i, j)]) = piece_at(&sums.of[i][j]);
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < THREAD_M; ++i) {
    if (!thread.finishes(i)) continue;
#pragma unroll
    for (int other = 1; other < SLICES; ++other) {
#pragma unroll
      for (int j = 0; j < THREAD_N; j += PIECE) {
        float4 piece = piece_at(&left[place((thread.slice + other) % SLICES, i, j)]);
        sums.of[i][j] += piece.x;
        sums.of[i][j + 1] += piece.y;
        sums.of[i][j + 2] += piece.z;
        sums.of[i][j + 3] += piece.w;
      }
    }
  }
}

// Write a thread's sums, with their end, to rows of `distance` elements, of which `rows` and `columns`
// exist, or ALL. Where rows are not a multiple of 16 bytes apart, lanes exchange their pieces through `memory`:
// a warp then writes neighbouring elements at once, instead of every fourth one.
template <bool ALL, class Ending>
__device__ void store(float* to, int distance, int rows, int columns, const Sums& sums,
                      const Ending& ending, void* memory) {
  Thread thread;
  bool aligned = distance % PIECE == 0;
  constexpr int LENGTH = LANES_N * PIECE;  // of a line that a warp writes at once
  int own_m = thread.m % LANES_M, own_n = thread.n % LANES_N;
  float* lines = static_cast<float*>(memory) + threadIdx.x / 32 * LANES_M * LENGTH;
  if (!aligned) __syncthreads();  // what is overwritten was read
#pragma unroll
  for (int i = 0; i < THREAD_M; ++i) {
    int row = thread.row(i);
    if (!thread.finishes(i) || (aligned && !ALL && row >= rows)) continue;
#pragma unroll
    for (int j = 0; j < THREAD_N; j += PIECE) {
      int column = thread.column(j);
      alignas(16) float results[PIECE];
      piece_at(results) = piece_at(&sums.of[i][j]);
      ending.template apply<ALL>(results, row, column);
      if (!aligned) {
        piece_at(&lines[own_m * LENGTH + own_n * PIECE]) = piece_at(results);
        __syncwarp();
        int along = column - own_n * PIECE + thread.lane;
#pragma unroll
        for (int m = 0; m < LANES_M; ++m) {
          Thread other = thread;
          other.m += m - own_m;
          int down = other.row(i);
          if (ALL || (down < rows && along < columns)) {
            to[down * distance + along] = lines[m * LENGTH + thread.lane];
          }
        }
        __syncwarp();
      } else if (ALL || column + PIECE <= columns) {
        piece_at(to + row * distance + column) = piece_at(results);
      } else {
#pragma unroll
        for (int l = 0; l < PIECE; ++l) {
          if (column + l < columns) to[row * distance + column + l] = results[l];
        }
      }
    }
  }
}
