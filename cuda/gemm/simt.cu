// C = A B in float32 on CUDA cores, for any sizes and layouts.
//
// Besides those of tiles.cu, the constants of this text are:
//   A_WIDTH, B_WIDTH   elements that are copied at once: 1, 2 or 4, as the alignment of rows allows
//   THREAD_M, THREAD_N size of the part of a tile that a thread computes, multiples of 4
//   ASYNCHRONOUS       whether steps are copied past the registers (cp.async, from sm_80 on)
//
// A step is one multiplication of a column of TILE_M x TILE_K by a row of TILE_K x TILE_N. While a
// block computes with one stage, the copies of the next STAGES - 1 are under way.

#if ASYNCHRONOUS
#include <cuda_pipeline.h>
#endif

constexpr int THREADS_M = TILE_M / THREAD_M, THREADS_N = TILE_N / THREAD_N;
constexpr int THREADS = THREADS_M * THREADS_N;
// A is transposed on the way to shared memory: four more elements a row spread it over the banks.
constexpr int A_ROW = TILE_M + (A_TRANSPOSED ? 0 : 4);
constexpr int A_STAGE = TILE_K * A_ROW, B_STAGE = TILE_K * TILE_N;

// The lanes of a warp compute 4 x 8 pieces of 4 x 4 elements.
constexpr int LANES_M = 4, LANES_N = 8;
static_assert(THREADS_M % LANES_M == 0 && THREADS_N % LANES_N == 0, "warps must fill the tile");

// Copy WIDTH elements to shared memory, of which the first `valid` exist; the others become 0.
template <int WIDTH>
__device__ void copy(float* to, const float* from, int valid) {
#if ASYNCHRONOUS
  __pipeline_memcpy_async(to, from, 4 * WIDTH, 4 * (WIDTH - valid));
#else
  if (WIDTH == 4 && valid == 4) {
    *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(from);
  } else if (WIDTH == 2 && valid == 2) {
    *reinterpret_cast<float2*>(to) = *reinterpret_cast<const float2*>(from);
  } else {
    for (int i = 0; i < WIDTH; ++i) to[i] = i < valid ? from[i] : 0.0f;
  }
#endif
}

// Copy TILE_K rows of LENGTH elements, of which `rows` and `columns` are in the matrix.
template <int LENGTH, int WIDTH, int TO_ROW>
__device__ void copy_rows(float* to, const float* from, int distance, int rows, int columns) {
  constexpr int PIECES = LENGTH / WIDTH;
#pragma unroll
  for (int i = threadIdx.x; i < TILE_K * PIECES; i += THREADS) {
    int row = i / PIECES, column = i % PIECES * WIDTH;
    int valid = row < rows ? min(max(columns - column, 0), WIDTH) : 0;
    copy<WIDTH>(&to[row * TO_ROW + column], valid ? from + row * distance + column : from, valid);
  }
}

// Copy the transpose of TILE_M rows of TILE_K elements, of which `rows` and `columns` exist.
__device__ void copy_transposed(float* to, const float* from, int rows, int columns) {
#pragma unroll
  for (int i = threadIdx.x; i < TILE_M * TILE_K; i += THREADS) {
    int row = i / TILE_K, column = i % TILE_K;
    int valid = row < rows && column < columns;
    copy<1>(&to[column * A_ROW + row], valid ? from + row * LDA + column : from, valid);
  }
}

__device__ void copy_step(float* a_stage, float* b_stage, const float* A, const float* B,
                          Place place, int step) {
  int k = step * TILE_K;
  if (A_TRANSPOSED) {
    copy_rows<TILE_M, A_WIDTH, A_ROW>(a_stage, A + k * LDA + place.row, LDA, K - k, M - place.row);
  } else {
    copy_transposed(a_stage, A + place.row * LDA + k, M - place.row, K - k);
  }
  copy_rows<TILE_N, B_WIDTH, TILE_N>(b_stage, B + k * LDB + place.column, LDB, K - k,
                                     N - place.column);
}

__device__ void commit() {
#if ASYNCHRONOUS
  __pipeline_commit();
#endif
}

// Wait until all but the latest `others` steps are in shared memory, for all threads.
template <int OTHERS>
__device__ void wait() {
#if ASYNCHRONOUS
  __pipeline_wait_prior(OTHERS);
#endif
  __syncthreads();
}

// Add the products of one step. A thread's rows and columns come in pieces of four.
__device__ void multiply(float (&sums)[THREAD_M][THREAD_N], const float* a_stage,
                         const float* b_stage, int m, int n) {
#pragma unroll
  for (int k = 0; k < TILE_K; ++k) {
    float a[THREAD_M], b[THREAD_N];
#pragma unroll
    for (int i = 0; i < THREAD_M; i += 4) {
      *reinterpret_cast<float4*>(&a[i]) =
          *reinterpret_cast<const float4*>(&a_stage[k * A_ROW + i * THREADS_M + 4 * m]);
    }
#pragma unroll
    for (int j = 0; j < THREAD_N; j += 4) {
      *reinterpret_cast<float4*>(&b[j]) =
          *reinterpret_cast<const float4*>(&b_stage[k * TILE_N + j * THREADS_N + 4 * n]);
    }
#pragma unroll
    for (int i = 0; i < THREAD_M; ++i) {
#pragma unroll
      for (int j = 0; j < THREAD_N; ++j) sums[i][j] += a[i] * b[j];
    }
  }
}

// Write a thread's sums to rows of `distance` elements, of which `rows` and `columns` exist.
__device__ void store(float* to, int distance, int rows, int columns,
                      const float (&sums)[THREAD_M][THREAD_N], int m, int n) {
#pragma unroll
  for (int i = 0; i < THREAD_M; ++i) {
    int row = i / 4 * 4 * THREADS_M + 4 * m + i % 4;
    if (row >= rows) continue;
#pragma unroll
    for (int j = 0; j < THREAD_N; j += 4) {
      int column = j * THREADS_N + 4 * n;
      float* there = to + row * distance + column;
      if (distance % 4 == 0 && column + 4 <= columns) {
        *reinterpret_cast<float4*>(there) =
            make_float4(sums[i][j], sums[i][j + 1], sums[i][j + 2], sums[i][j + 3]);
      } else {
#pragma unroll
        for (int l = 0; l < 4; ++l) {
          if (column + l < columns) there[l] = sums[i][j + l];
        }
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    gemm(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C
#if SHARED_TILES
         , float* __restrict__ parts
#endif
    ) {
  extern __shared__ float4 memory[];
  float* a_stages = reinterpret_cast<float*>(memory);
  float* b_stages = a_stages + STAGES * A_STAGE;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int m = warp % (THREADS_M / LANES_M) * LANES_M + lane / LANES_N;
  int n = warp / (THREADS_M / LANES_M) * LANES_N + lane % LANES_N;

  int block = blockIdx.x, last = first_step(block + 1);
  for (int now = first_step(block); now < last;) {
    int tile = now / STEPS, begin = now % STEPS, end = min(STEPS, begin + last - now);
    Place place = place_of(tile);
    float sums[THREAD_M][THREAD_N] = {};
#pragma unroll
    for (int ahead = 0; ahead < STAGES - 1; ++ahead) {
      if (begin + ahead < end) {
        copy_step(a_stages + ahead * A_STAGE, b_stages + ahead * B_STAGE, A, B, place,
                  begin + ahead);
      }
      commit();
    }
    for (int step = begin; step < end; ++step) {
      wait<STAGES - 2>();
      int next = step + STAGES - 1;
      if (next < end) {
        int stage = (next - begin) % STAGES;
        copy_step(a_stages + stage * A_STAGE, b_stages + stage * B_STAGE, A, B, place, next);
      }
      commit();
      int stage = (step - begin) % STAGES;
      multiply(sums, a_stages + stage * A_STAGE, b_stages + stage * B_STAGE, m, n);
    }
    bool whole = begin == 0 && end == STEPS;
    if (!SHARED_TILES || whole) {
      store(C + place.row * N + place.column, N, M - place.row, N - place.column, sums, m, n);
    }
#if SHARED_TILES
    // A block has at most one tile that others have begun, and one that others finish.
    if (!whole) {
      float* part = parts + (2LL * block + (begin == 0)) * (TILE_M * TILE_N);
      store(part, TILE_N, TILE_M, TILE_N, sums, m, n);
    }
#endif
    now += end - begin;
    __syncthreads();  // the next tile's first copies overwrite what was read last
  }
}
