// Converts to e4m3 (bias 7, no infinity), saturating, to nearest even, after a scale.
__device__ unsigned char e4m3(float v) {
    unsigned bits = __float_as_uint(v);
    unsigned sign = bits >> 24 & 0x80;
    float a = fabsf(v);
    if (a >= 448.f) return sign | 0x7e;
    if (a < 0.015625f) return sign | (unsigned)__float2int_rn(a * 512.f);
    unsigned m = __float_as_uint(a);
    m += 0x7ffff + (m >> 20 & 1);
    return sign | ((m >> 20) - (120 << 3));
}
__global__ void to_fp8(const float* x, unsigned char* y, float scale, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = e4m3(x[i] * scale);
}
