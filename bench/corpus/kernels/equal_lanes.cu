// Sums of the distinct values among 32 neighbours.
extern "C" __global__ void equal_lanes(const int* x, int* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
    int v = i < n ? x[i] : 0;
    unsigned same = __match_any_sync(0xffffffffu, v);
    int counts = __ffs(same) - 1 == lane ? v : 0;
    int sum = __reduce_add_sync(0xffffffffu, counts);
    if (lane == 0 && i < n) y[i / 32] = sum;
}
