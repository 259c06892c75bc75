// Four-bit codes, two a byte with the higher nibble first, and a scale for each 64 elements.
__constant__ float book[16] = {-1.f, -0.6961928f, -0.5250731f, -0.3949175f, -0.2844414f, -0.1847734f, -0.0910500f, 0.f, 0.0795803f, 0.1609302f, 0.2461123f, 0.3379152f, 0.4407098f, 0.5626170f, 0.7229568f, 1.f};
__global__ void nf4(const unsigned char* codes, const float* scales, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (2 * i >= n) return;
    unsigned char code = codes[i];
    float scale = scales[i / 32];
    y[2 * i] = book[code >> 4] * scale;
    if (2 * i + 1 < n) y[2 * i + 1] = book[code & 15] * scale;
}
