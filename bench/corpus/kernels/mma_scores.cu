// Products of 16x16 tiles of halves by mma.sync, a warp a tile of 16x8.
__global__ void mma_scores(const unsigned short* a, const unsigned short* b, float* c, int k, int n) {
    int lane = threadIdx.x, g = lane / 4, q = lane % 4;
    int row0 = blockIdx.y * 16, column0 = blockIdx.x * 8;
    float d[4] = {0.f, 0.f, 0.f, 0.f};
    for (int p = 0; p < k; p += 16) {
        unsigned ra[4], rb[2];
        const unsigned short* at = a + (row0 + g) * k + p + 2 * q;
        ra[0] = *(const unsigned*)at;
        ra[1] = *(const unsigned*)(at + 8 * k);
        ra[2] = *(const unsigned*)(at + 8);
        ra[3] = *(const unsigned*)(at + 8 * k + 8);
        const unsigned short* bt = b + (column0 + g) * k + p + 2 * q;
        rb[0] = *(const unsigned*)bt;
        rb[1] = *(const unsigned*)(bt + 8);
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[0]), "r"(rb[1]));
    }
    float* out = c + (row0 + g) * n + column0 + 2 * q;
    out[0] = d[0];
    out[1] = d[1];
    out[8 * n] = d[2];
    out[8 * n + 1] = d[3];
}
