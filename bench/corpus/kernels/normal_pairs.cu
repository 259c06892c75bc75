// Normal numbers from pairs of random integers, by the transform of Box and Muller.
extern "C" __global__ void normal_pairs(const unsigned* bits, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float u = (bits[2 * i] >> 9) * 0x1p-23f + 0x1p-24f;
    float angle = (bits[2 * i + 1] >> 8) * 0x1p-23f;  // in half turns
    float radius = sqrtf(-2.0f * logf(u));
    y[2 * i] = radius * cospif(angle);
    y[2 * i + 1] = radius * sinpif(angle);
}
