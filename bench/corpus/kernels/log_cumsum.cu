// Running log-sum-exp along rows: a warp a row, in chunks of 32.
__device__ float join(float a, float b) {
    float m = fmaxf(a, b);
    return m == -INFINITY ? m : m + log1pf(expf(fminf(a, b) - m));
}
__global__ void log_cumsum(const float* x, float* y, int n) {
    int lane = threadIdx.x;
    float carry = -INFINITY;
    for (int first = 0; first < n; first += 32) {
        float v = first + lane < n ? x[blockIdx.x * n + first + lane] : -INFINITY;
        for (int o = 1; o < 32; o *= 2) {
            float other = __shfl_up_sync(0xffffffff, v, o);
            if (lane >= o) v = join(v, other);
        }
        v = join(v, carry);
        if (first + lane < n) y[blockIdx.x * n + first + lane] = v;
        carry = __shfl_sync(0xffffffff, v, 31);
    }
}
