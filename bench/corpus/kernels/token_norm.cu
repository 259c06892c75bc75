// Normalizes the q part of every token of a row, one block a row, tokens in turn (sparkinfer 705).
__global__ void token_norm(const float* x, float* y, int tokens) {
    __shared__ float sw[8];
    int t = threadIdx.x;
    const float* row = x + (size_t)blockIdx.x * tokens * 128;
    float* out = y + (size_t)blockIdx.x * tokens * 128;
    for (int k = 0; k < tokens; k++) {
        float v = row[k * 128 + t];
        float s = v * v;
        for (int o = 16; o > 0; o >>= 1) s += __shfl_xor_sync(0xffffffff, s, o);
        if ((t & 31) == 0) sw[t >> 5] = s;
        __syncthreads();
        float sum = sw[0] + sw[1] + sw[2] + sw[3];
        out[k * 128 + t] = v * rsqrtf(sum + 1e-6f);
        __syncthreads();
    }
}
