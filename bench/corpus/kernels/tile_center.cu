// Numbers less the mean of their group of sixteen, by tiles of cooperative groups.
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

__global__ void tile_center(const float* x, float* y, int n) {
  auto tile = cg::tiled_partition<16>(cg::this_thread_block());
  const int i = blockIdx.x * blockDim.x + threadIdx.x, first = i - (int)tile.thread_rank();
  const float v = i < n ? x[i] : 0.f;
  float sum = v;
  for (int o = tile.size() / 2; o > 0; o /= 2) sum += tile.shfl_xor(sum, o);
  if (i < n) y[i] = v - sum / min(16, n - first);
}
