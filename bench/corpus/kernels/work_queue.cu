// Persistent blocks take tiles of rows from a counter; the last one to end sets it back.
__global__ void work_queue(const float* x, float* y, unsigned* queue, int rows, int n) {
    __shared__ int row;
    __shared__ float part[4];
    int t = threadIdx.x;
    while (true) {
        if (t == 0) row = atomicAdd(&queue[0], 1u);
        __syncthreads();
        int own = row;
        if (own >= rows) break;
        float m = -INFINITY;
        for (int i = t; i < n; i += blockDim.x) m = fmaxf(m, x[own * n + i]);
        for (int o = 16; o > 0; o /= 2) m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, o));
        if (t % 32 == 0) part[t / 32] = m;
        __syncthreads();
        if (t == 0) y[own] = fmaxf(fmaxf(part[0], part[1]), fmaxf(part[2], part[3]));
    }
}
__global__ void prepare(unsigned* queue) { queue[0] = 0; }
