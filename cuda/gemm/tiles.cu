// How a product is divided among blocks; the part of all templates.
//
// Above this text stand its constants:
//   Element            type of the matrices' elements
//   M, N, K            sizes of the product
//   LDA, LDB           distances in elements between the stored rows of A and B
//   A_TRANSPOSED       whether A is stored as K rows of M elements, rather than M rows of K
//   TILE_M, TILE_N     size of the part of C that a block computes at a time
//   TILE_K             columns of A and rows of B that it holds in shared memory for one step
//   STAGES             steps that are in shared memory or on the way there
//   BLOCKS             number of blocks, among which all steps of all tiles are divided evenly
//   GROUP              rows of tiles that are computed together, so that they share B in the L2
//   SHARED_TILES       whether some tiles are shared by several blocks
//
// With as many blocks as tiles, each block computes a tile. With any other number, a tile can be
// shared by several blocks (split-K, stream-K): each of these writes its part of the sum to a
// workspace, and gemm_sum adds the parts, always in the same order.

constexpr int ROWS = (M + TILE_M - 1) / TILE_M, COLUMNS = (N + TILE_N - 1) / TILE_N;
constexpr int STEPS = (K + TILE_K - 1) / TILE_K;
constexpr long long ALL_STEPS = static_cast<long long>(ROWS) * COLUMNS * STEPS;

__device__ int first_step(int block) {
  return static_cast<int>(ALL_STEPS * block / BLOCKS);
}

__device__ int block_of(int step) {
  return static_cast<int>(((step + 1LL) * BLOCKS - 1) / ALL_STEPS);
}

struct Place {
  int row, column;  // of a tile's first element in C
};

__device__ Place place_of(int tile) {
  int group = tile / (GROUP * COLUMNS), within = tile % (GROUP * COLUMNS);
  int rows = min(GROUP, ROWS - group * GROUP);
  return {(group * GROUP + within % rows) * TILE_M, within / rows * TILE_N};
}

#if SHARED_TILES
extern "C" __global__ void __launch_bounds__(256)
    gemm_sum(const float* __restrict__ parts, Element* __restrict__ C) {
  int tile = blockIdx.x, begin = tile * STEPS;
  int first = block_of(begin), last = block_of(begin + STEPS - 1);
  if (first == last) return;
  Place place = place_of(tile);
  for (int i = threadIdx.x; i < TILE_M * TILE_N; i += 256) {
    int row = i / TILE_N, column = i % TILE_N;
    if (place.row + row >= M || place.column + column >= N) continue;
    float sum = parts[(2LL * first + 1) * (TILE_M * TILE_N) + i];
    for (int block = first + 1; block <= last; ++block) {
      sum += parts[2LL * block * (TILE_M * TILE_N) + i];
    }
    C[(place.row + row) * N + place.column + column] = Element(sum);
  }
}
#endif
