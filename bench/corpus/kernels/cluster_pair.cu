// Sums of rows by a cluster of two blocks, one of which reads the other's shared memory.
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

extern "C" __global__ void __cluster_dims__(2, 1, 1) cluster_pair(const float* x, float* y, int columns) {
    __shared__ float parts[4];
    __shared__ float total;
    cg::cluster_group cluster = cg::this_cluster();
    int row = blockIdx.x / 2, half = columns / 2, begin = (int)cluster.block_rank() * half;
    int end = cluster.block_rank() ? columns : half;
    float sum = 0.0f;
    for (int c = begin + threadIdx.x; c < end; c += 128) sum += x[row * columns + c];
    for (int o = 16; o; o /= 2) sum += __shfl_down_sync(0xffffffffu, sum, o);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) total = parts[0] + parts[1] + parts[2] + parts[3];
    cluster.sync();
    if (cluster.block_rank() == 0 && threadIdx.x == 0) y[row] = total + *cluster.map_shared_rank(&total, 1);
    cluster.sync();
}
