// Tiles of 128 floats copied by cp.async, the last one filled up with zeros, summed by rows.
__global__ void tail_async(const float* x, float* y, int n) {
    __shared__ __align__(16) float tile[2][128];
    int t = threadIdx.x;
    const float* row = x + (size_t)blockIdx.x * n;
    int tiles = (n + 127) / 128;
    float s = 0.f;
    for (int k = 0; k < tiles + 1; k++) {
        if (k < tiles) {
            unsigned to = (unsigned)__cvta_generic_to_shared(&tile[k & 1][4 * t]);
            int left = n - (k * 128 + 4 * t);
            int bytes = left >= 4 ? 16 : left > 0 ? 4 * left : 0;
            const float* from = bytes ? row + k * 128 + 4 * t : row;
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(from), "r"(bytes));
        }
        asm volatile("cp.async.commit_group;");
        if (k > 0) {
            asm volatile("cp.async.wait_group 1;");
            __syncwarp();
            for (int j = 0; j < 4; j++) s += tile[(k - 1) & 1][t + 32 * j];
            __syncwarp();
        }
    }
    for (int o = 16; o > 0; o /= 2) s += __shfl_xor_sync(0xffffffff, s, o);
    if (t == 0) y[blockIdx.x] = s;
}
