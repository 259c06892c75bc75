// Maximum of the first lengths[b] elements of each row; minus infinity for none.
__global__ void jagged_max(const float* x, const int* lengths, float* y, int n) {
    __shared__ float part[8];
    int t = threadIdx.x, length = lengths[blockIdx.x];
    float m = -INFINITY;
    for (int i = t; i < length; i += blockDim.x) m = fmaxf(m, x[blockIdx.x * n + i]);
    for (int o = 16; o > 0; o /= 2) m = fmaxf(m, __shfl_down_sync(0xffffffff, m, o));
    if (t % 32 == 0) part[t / 32] = m;
    __syncthreads();
    if (t == 0) {
        for (int w = 1; w < blockDim.x / 32; w++) m = fmaxf(m, part[w]);
        y[blockIdx.x] = m;
    }
}
