// Rows take a step as long as themselves times a rate, as LAMB does.
__device__ float block_sum(float v, float* part) {
    for (int o = 16; o; o /= 2) v += __shfl_xor_sync(0xffffffffu, v, o);
    __syncthreads();
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    return part[0] + part[1] + part[2] + part[3];
}

extern "C" __global__ void trust_ratio(const float* w, const float* step, float* out, int columns, float rate) {
    __shared__ float part[4];
    int row = blockIdx.x * columns;
    float own = 0.0f, other = 0.0f;
    for (int c = threadIdx.x; c < columns; c += 128) {
        own += w[row + c] * w[row + c];
        other += step[row + c] * step[row + c];
    }
    own = block_sum(own, part);
    other = block_sum(other, part);
    float ratio = own > 0.0f && other > 0.0f ? sqrtf(own / other) : 1.0f;
    for (int c = threadIdx.x; c < columns; c += 128) out[row + c] = w[row + c] - rate * ratio * step[row + c];
}
