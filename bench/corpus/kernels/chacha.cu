// Blocks of the ChaCha20 key stream with a counter of 64 bits.
__device__ unsigned rotated(unsigned x, int n) {
    return x << n | x >> (32 - n);
}

__device__ void quarter(unsigned& a, unsigned& b, unsigned& c, unsigned& d) {
    a += b; d = rotated(d ^ a, 16);
    c += d; b = rotated(b ^ c, 12);
    a += b; d = rotated(d ^ a, 8);
    c += d; b = rotated(b ^ c, 7);
}

extern "C" __global__ void chacha(const unsigned* key, const unsigned* counter, const unsigned* nonce, unsigned* stream, int blocks) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= blocks) return;
    unsigned s[16] = {0x61707865u, 0x3320646eu, 0x79622d32u, 0x6b206574u};
    for (int k = 0; k < 8; k++) s[4 + k] = key[k];
    unsigned low = counter[0] + i;
    s[12] = low;
    s[13] = counter[1] + (low < i);
    s[14] = nonce[0];
    s[15] = nonce[1];
    unsigned w[16];
    for (int k = 0; k < 16; k++) w[k] = s[k];
    for (int round = 0; round < 10; round++) {
        for (int k = 0; k < 4; k++) quarter(w[k], w[4 + k], w[8 + k], w[12 + k]);
        for (int k = 0; k < 4; k++) quarter(w[k], w[4 + (k + 1) % 4], w[8 + (k + 2) % 4], w[12 + (k + 3) % 4]);
    }
    for (int k = 0; k < 16; k++) stream[i * 16 + k] = w[k] + s[k];
}
