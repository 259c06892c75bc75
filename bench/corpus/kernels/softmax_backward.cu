// Gradient of a causal softmax: dx = y * (g - sum(y * g)), a block a row (llm.c 847).
__global__ void softmax_backward(const float* y, const float* g, float* dx, int n) {
    __shared__ float part[32];
    int row = blockIdx.x, t = threadIdx.x, lane = t % 32, warp = t / 32;
    const float* yr = y + row * n;
    const float* gr = g + row * n;
    if (warp == 0) part[lane] = 0.f;
    __syncthreads();
    float s = 0.f;
    for (int i = t; i <= row; i += blockDim.x) s += yr[i] * gr[i];
    for (int o = 16; o > 0; o /= 2) s += __shfl_down_sync(0xffffffff, s, o);
    if (lane == 0) part[warp] = s;
    __syncthreads();
    float total = part[lane];
    for (int o = 16; o > 0; o /= 2) total += __shfl_xor_sync(0xffffffff, total, o);
    for (int i = t; i < n; i += blockDim.x) dx[row * n + i] = i <= row ? yr[i] * (gr[i] - total) : 0.f;
}
