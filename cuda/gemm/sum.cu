// Adds the parts of tiles that several blocks have computed: a launch of its own, with several blocks
// for what each block of a cluster has of a tile. It applies their end. Templates define place_of_part, the place in its tile
// of an element of a part.

#if SHARED_TILES
__device__ int block_of(int step) {
  return static_cast<int>(((step + 1LL) * BLOCKS - 1) / DIVIDED_STEPS);
}

extern "C" __global__ void __launch_bounds__(256)
    gemm_sum(const float* __restrict__ parts,
#if SCALES
             const float* __restrict__ a_scale, const float* __restrict__ b_scale,
#endif
#if WITH_BIAS
             const Result* __restrict__ bias,
#endif
#if WITH_RESIDUAL
             const Result* __restrict__ residual,
#endif
             Result* __restrict__ C) {
  int rank = blockIdx.z, begin = blockIdx.x * STEPS;
  int first = block_of(begin), last = block_of(begin + STEPS - 1);
  if (first == last) return;
  Place place = place_of(WHOLE_TILES + blockIdx.x, rank);
  int i = 4 * (blockIdx.y * 256 + threadIdx.x);
  if (i >= TILE_M * TILE_N) return;
  alignas(16) float sums[4];
  *reinterpret_cast<float4*>(sums) =
      *reinterpret_cast<const float4*>(parts + part_of(first, rank, true) + i);
#pragma unroll 8  // many parts are on the way at once
  for (int block = first + 1; block <= last; ++block) {
    float4 part = *reinterpret_cast<const float4*>(parts + part_of(block, rank, false) + i);
    sums[0] += part.x;
    sums[1] += part.y;
    sums[2] += part.z;
    sums[3] += part.w;
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    Place within = place_of_part(i + j);
    Place here = {place.row + within.row, place.column + within.column, place.product, place.end};
    if (here.row >= here.end || here.column >= N) continue;
    here = place_of_c(here);
    float result[1] = {sums[j]};
    end_at(here, BIAS, RESIDUAL, common_scales(A_SCALE, B_SCALE), A_SCALE, B_SCALE).apply<true>(result, 0, 0);
    C[place_in_c(here)] = Result(result[0]);
  }
}
#endif
