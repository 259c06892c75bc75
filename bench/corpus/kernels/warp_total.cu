// Totals of groups of 32, in which negative numbers are squared first.
extern "C" __global__ void warp_total(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = i < n ? x[i] : 0.0f;
    if (v < 0.0f) v *= v;
    unsigned lanes = 0xffffffffu;
    for (int o = 16; o; o /= 2) v += __shfl_xor_sync(lanes, v, o);
    if (threadIdx.x % 32 == 0 && i < n) y[i / 32] = v;
}
