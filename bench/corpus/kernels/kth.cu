// The k-th smallest of each row by radix selection on ordered bits, eight bits at a time.
__device__ unsigned ordered(float v) {
    unsigned b = __float_as_uint(v);
    return b & 0x80000000u ? ~b : b | 0x80000000u;
}
__global__ void kth(const float* x, float* y, int n, int k) {
    __shared__ unsigned count[256], prefix, rank;
    int t = threadIdx.x;
    if (t == 0) { prefix = 0; rank = k; }
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = t; i < 256; i += blockDim.x) count[i] = 0;
        __syncthreads();
        for (int i = t; i < n; i += blockDim.x) {
            unsigned key = ordered(x[blockIdx.x * n + i]);
            if (shift == 24 || key >> (shift + 8) == prefix >> (shift + 8)) atomicAdd(&count[key >> shift & 255], 1u);
        }
        __syncthreads();
        if (t == 0) {
            unsigned before = 0;
            int digit = 0;
            while (before + count[digit] <= rank) before += count[digit++];
            rank -= before;
            prefix |= (unsigned)digit << shift;
        }
        __syncthreads();
    }
    if (t == 0) y[blockIdx.x] = __uint_as_float(prefix & 0x80000000u ? prefix & 0x7fffffffu : ~prefix);
}
