// Divides a vector by its norm; a cooperative launch whose blocks meet in the middle.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
__global__ void grid_norm(const float* x, float* y, float* parts, int n) {
    cg::grid_group grid = cg::this_grid();
    cg::thread_block block = cg::this_thread_block();
    auto warp = cg::tiled_partition<32>(block);
    __shared__ float sums[8];
    float s = 0.f;
    for (int i = grid.thread_rank(); i < n; i += grid.size()) s += x[i] * x[i];
    s = cg::reduce(warp, s, cg::plus<float>());
    if (warp.thread_rank() == 0) sums[warp.meta_group_rank()] = s;
    block.sync();
    if (block.thread_rank() == 0) {
        float total = 0.f;
        for (int w = 0; w < warp.meta_group_size(); w++) total += sums[w];
        parts[blockIdx.x] = total;
    }
    grid.sync();
    float all = 0.f;
    for (int b = 0; b < gridDim.x; b++) all += parts[b];
    float inverse = rsqrtf(all + 1e-12f);
    for (int i = grid.thread_rank(); i < n; i += grid.size()) y[i] = x[i] * inverse;
}
