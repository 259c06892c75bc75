// Gradient of group normalization for its input, a block a sample and group.
__device__ float block_sum(float v, float* part) {
    for (int o = 16; o; o /= 2) v += __shfl_xor_sync(0xffffffffu, v, o);
    __syncthreads();
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    return part[0] + part[1] + part[2] + part[3];
}

extern "C" __global__ void group_norm_backward(const float* x, const float* dy, const float* gain, float* dx, int groups, int each, int places) {
    __shared__ float part[4];
    int n = each * places, first = blockIdx.x * n, channel = blockIdx.x % groups * each;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += 128) sum += x[first + i];
    float mean = block_sum(sum, part) / n;
    sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += 128) sum += (x[first + i] - mean) * (x[first + i] - mean);
    float scale = rsqrtf(block_sum(sum, part) / n + 1e-3f);
    float plain = 0.0f, along = 0.0f;
    for (int i = threadIdx.x; i < n; i += 128) {
        float g = dy[first + i] * gain[channel + i / places];
        plain += g;
        along += g * (x[first + i] - mean) * scale;
    }
    plain = block_sum(plain, part) / n;
    along = block_sum(along, part) / n;
    for (int i = threadIdx.x; i < n; i += 128) {
        float g = dy[first + i] * gain[channel + i / places];
        dx[first + i] = scale * (g - plain - (x[first + i] - mean) * scale * along);
    }
}
