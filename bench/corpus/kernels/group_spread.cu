// The largest element of a row less the smallest, with cooperative groups.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;

extern "C" __global__ void group_spread(const float* x, float* y, int columns) {
    __shared__ float part[8];
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
    const float* row = x + blockIdx.x * columns;
    float high = -INFINITY, low = INFINITY;
    for (int c = block.thread_rank(); c < columns; c += block.size()) {
        high = fmaxf(high, row[c]);
        low = fminf(low, row[c]);
    }
    high = cg::reduce(warp, high, cg::greater<float>());
    low = cg::reduce(warp, low, cg::less<float>());
    if (warp.thread_rank() == 0) part[warp.meta_group_rank()] = high;
    block.sync();
    for (int i = 0; i < 8; i++) high = fmaxf(high, part[i]);
    block.sync();
    if (warp.thread_rank() == 0) part[warp.meta_group_rank()] = low;
    block.sync();
    for (int i = 0; i < 8; i++) low = fminf(low, part[i]);
    if (block.thread_rank() == 0) y[blockIdx.x] = high - low;
}
