// Reflects y by the reflection that takes x to a multiple of the first unit vector.
__device__ float summed(float v) {
    for (int o = 16; o; o /= 2) v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}

extern "C" __global__ void householder(const float* x, const float* y, float* out, int rows) {
    int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    float v0 = x[row * 64 + lane], v1 = x[row * 64 + 32 + lane];
    float y0 = y[row * 64 + lane], y1 = y[row * 64 + 32 + lane];
    float length = sqrtf(summed(v0 * v0 + v1 * v1));
    if (lane == 0) v0 += copysignf(length, v0);
    float square = summed(v0 * v0 + v1 * v1), along = summed(v0 * y0 + v1 * y1);
    float factor = square > 0.0f ? 2.0f * along / square : 0.0f;
    out[row * 64 + lane] = y0 - factor * v0;
    out[row * 64 + 32 + lane] = y1 - factor * v1;
}
