// C = A B in float32 on CUDA cores.
//
// Besides those of tiles.cu, the constants of this text are:
//   THREAD_M, THREAD_N size of the part of a tile that a thread computes, multiples of 4
//
// A step is one multiplication of a column of TILE_M x TILE_K by a row of TILE_K x TILE_N.

constexpr int THREADS_M = TILE_M / THREAD_M, THREADS_N = TILE_N / THREAD_N;
static_assert(THREADS == THREADS_M * THREADS_N, "threads must fill the tile");
// A is transposed on the way to shared memory: four more elements a row spread it over the banks.
constexpr int A_ROW = TILE_M + (A_TRANSPOSED ? 0 : 4), B_ROW = TILE_N;
constexpr int A_STAGE = TILE_K * A_ROW;

// The lanes of a warp compute 4 x 8 pieces of 4 x 4 elements.
constexpr int LANES_M = 4, LANES_N = 8;
static_assert(THREADS_M % LANES_M == 0 && THREADS_N % LANES_N == 0, "warps must fill the tile");

struct Sums {
  float of[THREAD_M][THREAD_N];
};

// Where this thread is among those of the block.
struct Thread {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int m = warp % (THREADS_M / LANES_M) * LANES_M + lane / LANES_N;
  int n = warp / (THREADS_M / LANES_M) * LANES_N + lane % LANES_N;
};

// Copy the transpose of TILE_M rows of TILE_K elements, of which `rows` and `columns` exist.
__device__ void copy_a(Element* to, const Element* from, int rows, int columns) {
  for_each_piece<TILE_M, TILE_K>([=](int row, int column) {
    int valid = (ALL_M || row < rows) && (ALL_K || column < columns);
    bool any = (ALL_M && ALL_K) || valid;
    copy<1>(&to[column * A_ROW + row], any ? from + row * LDA + column : from, valid);
  });
}

// Add the products of one step. A thread's rows and columns come in pieces of four.
__device__ void multiply(Sums& sums, const float* a_stage, const float* b_stage) {
  Thread thread;
#pragma unroll
  for (int k = 0; k < TILE_K; ++k) {
    float a[THREAD_M], b[THREAD_N];
#pragma unroll
    for (int i = 0; i < THREAD_M; i += 4) {
      *reinterpret_cast<float4*>(&a[i]) =
          *reinterpret_cast<const float4*>(&a_stage[k * A_ROW + i * THREADS_M + 4 * thread.m]);
    }
#pragma unroll
    for (int j = 0; j < THREAD_N; j += 4) {
      *reinterpret_cast<float4*>(&b[j]) =
          *reinterpret_cast<const float4*>(&b_stage[k * B_ROW + j * THREADS_N + 4 * thread.n]);
    }
#pragma unroll
    for (int i = 0; i < THREAD_M; ++i) {
#pragma unroll
      for (int j = 0; j < THREAD_N; ++j) sums.of[i][j] += a[i] * b[j];
    }
  }
}

// Write a thread's sums to rows of `distance` elements, of which `rows` and `columns` exist, or ALL.
template <bool ALL>
__device__ void store(float* to, int distance, int rows, int columns, const Sums& sums) {
  Thread thread;
#pragma unroll
  for (int i = 0; i < THREAD_M; ++i) {
    int row = i / 4 * 4 * THREADS_M + 4 * thread.m + i % 4;
    if (!ALL && row >= rows) continue;
#pragma unroll
    for (int j = 0; j < THREAD_N; j += 4) {
      int column = j * THREADS_N + 4 * thread.n;
      float* there = to + row * distance + column;
      if (distance % 4 == 0 && (ALL || column + 4 <= columns)) {
        *reinterpret_cast<float4*>(there) =
            make_float4(sums.of[i][j], sums.of[i][j + 1], sums.of[i][j + 2], sums.of[i][j + 3]);
      } else {
#pragma unroll
        for (int l = 0; l < 4; ++l) {
          if (column + l < columns) there[l] = sums.of[i][j + l];
        }
      }
    }
  }
}
