// Place of the first zero byte of each row of 64 bytes, 64 if there is none; a thread a row.
__global__ void first_zero(const unsigned char* x, int* y, int rows) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    const unsigned* words = (const unsigned*)(x + row * 64);
    int place = 64;
    for (int k = 0; k < 16; k++) {
        unsigned w = words[k];
        unsigned hit = w - 0x01010101u & ~w & 0x80808080u;
        if (hit) { place = k * 4 + (__ffs(hit) - 1) / 8; break; }
    }
    y[row] = place;
}
