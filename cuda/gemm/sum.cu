// Adds the parts of tiles that several blocks have computed: a launch of its own.

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
