// Mean of the flagged elements, zero if there are none; how many, and the last one.
__global__ void flag_mean(const float* x, const bool* flag, float* mean, int* count, int* last, int n) {
    __shared__ float sums[8];
    __shared__ int counts[8], lasts[8];
    int t = threadIdx.x, c = 0, p = -1;
    float s = 0.f;
    for (int i = t; i < n; i += 256)
        if (flag[i]) { s += x[i]; c++; p = i; }
    for (int o = 16; o > 0; o /= 2) {
        s += __shfl_xor_sync(0xffffffff, s, o);
        c += __shfl_xor_sync(0xffffffff, c, o);
        p = max(p, __shfl_xor_sync(0xffffffff, p, o));
    }
    if (t % 32 == 0) { sums[t / 32] = s; counts[t / 32] = c; lasts[t / 32] = p; }
    __syncthreads();
    if (t) return;
    for (int w = 1; w < 8; w++) { s += sums[w]; c += counts[w]; p = max(p, lasts[w]); }
    *mean = c ? s / c : 0.f;
    *count = c;
    *last = p;
}
