// Gradients of RMS norm; that of the gain is added to what is there (gradient accumulation).
__global__ void norm_grads(const float* x, const float* gain, const float* g, float* dx, float* dgain, int rows, int n) {
    extern __shared__ float own[];
    for (int c = threadIdx.x; c < n; c += blockDim.x) own[c] = 0.f;
    __shared__ float two[2];
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        __syncthreads();
        if (threadIdx.x < 32) {
            float a = 0.f, b = 0.f;
            for (int c = threadIdx.x; c < n; c += 32) {
                float v = x[row * n + c];
                a += v * v;
                b += v * gain[c] * g[row * n + c];
            }
            for (int o = 16; o > 0; o /= 2) {
                a += __shfl_xor_sync(0xffffffff, a, o);
                b += __shfl_xor_sync(0xffffffff, b, o);
            }
            if (threadIdx.x == 0) { two[0] = rsqrtf(a / n + 1e-5f); two[1] = b / n; }
        }
        __syncthreads();
        float r = two[0], b = two[1];
        for (int c = threadIdx.x; c < n; c += blockDim.x) {
            float v = x[row * n + c], u = g[row * n + c];
            dx[row * n + c] = r * (u * gain[c] - v * r * r * b);
            own[c] += u * v * r;
        }
    }
    for (int c = threadIdx.x; c < n; c += blockDim.x) atomicAdd(&dgain[c], own[c]);
}
