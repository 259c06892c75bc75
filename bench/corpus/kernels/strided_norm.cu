// Root mean square of each row of a view, whose elements are `step` apart and rows `pitch` apart.
__global__ void strided_norm(const float* x, float* y, int columns, int step, int pitch) {
    const float* row = x + blockIdx.x * pitch;
    float s = 0.f;
    for (int c = threadIdx.x; c < columns; c += 32) { float v = row[c * step]; s += v * v; }
    for (int o = 16; o > 0; o /= 2) s += __shfl_xor_sync(0xffffffff, s, o);
    float scale = rsqrtf(s / columns + 1e-5f);
    for (int c = threadIdx.x; c < columns; c += 32) y[blockIdx.x * columns + c] = row[c * step] * scale;
}
