// Sorts tokens by expert, stably, and pads each expert's share to whole tiles; names the expert of each tile.
#define EXPERTS 40

__global__ void moe_align(const int* expert_of, int* sorted, int* tile_expert, int* total, int n, int tile, int capacity) {
  extern __shared__ int shared[];
  int* cumulated = shared;
  int* counts = shared + EXPERTS + 1;
  const int t = threadIdx.x;
  const int each = (n + blockDim.x - 1) / blockDim.x;
  const int first = t * each, last = min(n, first + each);
  for (int e = 0; e < EXPERTS; ++e) counts[(t + 1) * EXPERTS + e] = 0;
  for (int i = t; i < capacity; i += blockDim.x) sorted[i] = n;
  for (int i = t; i < capacity / tile; i += blockDim.x) tile_expert[i] = -1;
  for (int i = first; i < last; ++i) ++counts[(t + 1) * EXPERTS + expert_of[i]];
  __syncthreads();
  for (int e = t; e < EXPERTS; e += blockDim.x) {
    counts[e] = 0;
    for (int k = 1; k <= blockDim.x; ++k) counts[k * EXPERTS + e] += counts[(k - 1) * EXPERTS + e];
  }
  __syncthreads();
  if (t == 0) {
    cumulated[0] = 0;
    for (int e = 0; e < EXPERTS; ++e) {
      const int count = counts[blockDim.x * EXPERTS + e];
      cumulated[e + 1] = cumulated[e] + (count + tile - 1) / tile * tile;
    }
    *total = cumulated[EXPERTS];
  }
  __syncthreads();
  for (int e = t; e < EXPERTS; e += blockDim.x)
    for (int i = cumulated[e]; i < cumulated[e + 1]; i += tile) tile_expert[i / tile] = e;
  for (int i = first; i < last; ++i) {
    const int e = expert_of[i];
    sorted[cumulated[e] + counts[t * EXPERTS + e]++] = i;
  }
}
