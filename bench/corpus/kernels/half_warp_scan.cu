// Running sums within groups of sixteen.
extern "C" __global__ void half_warp_scan(const unsigned* x, unsigned* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 16;
    unsigned sum = i < n ? x[i] : 0;
    for (int o = 1; o < 16; o *= 2) {
        unsigned add = __shfl_up_sync(0xffffffffu, sum, o, 16);
        if (lane >= o) sum += add;
    }
    if (i < n) y[i] = sum;
}
