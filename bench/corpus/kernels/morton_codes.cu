// Morton codes of points, ten bits an axis.
__device__ unsigned spread(unsigned v) {
    v = (v | v << 16) & 0x030000ffu;
    v = (v | v << 8) & 0x0300f00fu;
    v = (v | v << 4) & 0x030c30c3u;
    return (v | v << 2) & 0x09249249u;
}

extern "C" __global__ void morton_codes(const float* p, unsigned* code, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned bits = 0;
    for (int k = 0; k < 3; k++) {
        int cell = (int)floorf(p[3 * i + k] * 128.0f) + 512;
        bits |= spread(min(max(cell, 0), 1023)) << k;
    }
    code[i] = bits;
}
