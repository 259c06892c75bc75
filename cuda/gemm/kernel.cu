// The kernel of templates whose threads copy what they multiply: the tiles of a block, step by step.
//
// A template defines its Sums, multiply and store; the distance of rows of A and B in shared memory
// (A_ROW, B_ROW) and the elements of A in a stage (A_STAGE); and copy_a, for an A that is not stored
// transposed. While a block multiplies one stage, the copies of the next STAGES - 1 are under way.

constexpr int B_STAGE = TILE_K * B_ROW;

__device__ void copy_step(Element* a_stage, Element* b_stage, const Element* A, const Element* B,
                          Place place, int step) {
  int k = step * TILE_K;
  if (A_TRANSPOSED) {
    copy_rows<TILE_K, TILE_M, A_WIDTH, A_ROW, ALL_K, ALL_M>(a_stage, A + k * LDA + place.row, LDA,
                                                            K - k, M - place.row);
  } else {
    copy_a(a_stage, A + place.row * LDA + k, M - place.row, K - k);
  }
  copy_rows<TILE_K, TILE_N, B_WIDTH, B_ROW, ALL_K, ALL_N>(b_stage, B + k * LDB + place.column, LDB,
                                                          K - k, N - place.column);
}

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
  return {i / TILE_N, i % TILE_N};
}

extern "C" __global__ void __launch_bounds__(THREADS)
    gemm(const Element* __restrict__ A, const Element* __restrict__ B, Element* __restrict__ C
#if SHARED_TILES
         , float* __restrict__ parts
#endif
    ) {
  extern __shared__ uint4 memory[];
  Element* a_stages = reinterpret_cast<Element*>(memory);
  Element* b_stages = a_stages + STAGES * A_STAGE;
  int block = blockIdx.x, last = first_step(block + 1);
  for (int now = first_step(block); now < last;) {
    int tile = now / STEPS, begin = now % STEPS, end = min(STEPS, begin + last - now);
    Place place = place_of(tile);
    Sums sums = {};
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
      multiply(sums, a_stages + stage * A_STAGE, b_stages + stage * B_STAGE);
    }
    bool whole = begin == 0 && end == STEPS;
    if (!SHARED_TILES || whole) {
      store<ALL_M && ALL_N>(C + place.row * N + place.column, N, M - place.row, N - place.column,
                            sums);
    }
#if SHARED_TILES
    // A block has at most one tile that others have begun, and one that others finish.
    if (!whole) {
      store<true>(parts + part_of(block, 0, begin == 0), TILE_N, TILE_M, TILE_N, sums);
    }
#endif
    now += end - begin;
    __syncthreads();  // the next tile's first copies overwrite what was read last
  }
}
