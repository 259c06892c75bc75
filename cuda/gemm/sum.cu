// Adds the parts of tiles that several blocks have computed: a launch of its own.
//
// Besides those of tiles.cu, the constants of this text are:
//   SUM_THREADS        of a block of this launch, each of which adds four neighbouring elements
//   SUM_BLOCKS         that share a tile

#if SHARED_TILES
extern "C" __global__ void __launch_bounds__(SUM_THREADS)
    gemm_sum(const float* __restrict__ parts, Element* __restrict__ C) {
  constexpr int TILE = TILE_M * TILE_N;
  int tile = blockIdx.x / SUM_BLOCKS, begin = tile * STEPS;
  int first = block_of(begin), last = block_of(begin + STEPS - 1);
  int i = 4 * (blockIdx.x % SUM_BLOCKS * SUM_THREADS + threadIdx.x);
  if (first == last || i >= TILE) return;
  const float* part = parts + i;
  float4 sum = *reinterpret_cast<const float4*>(&part[(2LL * first + 1) * TILE]);
#pragma unroll 4
  for (int block = first + 1; block <= last; ++block) {
    float4 more = *reinterpret_cast<const float4*>(&part[2LL * block * TILE]);
    sum.x += more.x;
    sum.y += more.y;
    sum.z += more.z;
    sum.w += more.w;
  }
  Place place = place_of(tile);
  int row = place.row + i / TILE_N, column = place.column + i % TILE_N;
  if (row >= M) return;
  Element* there = C + row * N + column;
  store_pair<false>(there, N, N - column, sum.x, sum.y);
  store_pair<false>(there + 2, N, N - column - 2, sum.z, sum.w);
}
#endif
