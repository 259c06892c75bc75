// Two rounds of neighbour sums among blocks, between which all blocks meet at a counter.
__global__ void prepare(unsigned* arrived) { *arrived = 0; }
__global__ void grid_barrier(const float* x, float* y, float* sums, unsigned* arrived, int n) {
    __shared__ float part[4];
    int t = threadIdx.x, b = blockIdx.x;
    float s = 0.f;
    for (int i = t; i < n; i += 128) s += x[b * n + i];
    for (int o = 16; o > 0; o /= 2) s += __shfl_xor_sync(0xffffffff, s, o);
    if (t % 32 == 0) part[t / 32] = s;
    __syncthreads();
    if (t == 0) {
        sums[b] = part[0] + part[1] + part[2] + part[3];
        __threadfence();
        atomicAdd(arrived, 1u);
        while (atomicAdd(arrived, 0u) < gridDim.x) {}
        __threadfence();
    }
    __syncthreads();
    float before = sums[(b + gridDim.x - 1) % gridDim.x], after = sums[(b + 1) % gridDim.x];
    for (int i = t; i < n; i += 128) y[b * n + i] = x[b * n + i] + 0.5f * (before + after);
}
