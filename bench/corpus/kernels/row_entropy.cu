// Entropy of the softmax of each row, a warp a row.
__global__ void row_entropy(const float* x, float* y, int rows, int n) {
    int row = blockIdx.x * blockDim.y + threadIdx.y, lane = threadIdx.x;
    if (row >= rows) return;
    const float* r = x + row * n;
    float m = -INFINITY, z = 0.f, s = 0.f;
    for (int i = lane; i < n; i += 32) m = fmaxf(m, r[i]);
    for (int o = 16; o > 0; o /= 2) m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, o));
    for (int i = lane; i < n; i += 32) { float e = expf(r[i] - m); z += e; s += e * (r[i] - m); }
    for (int o = 16; o > 0; o /= 2) { z += __shfl_xor_sync(0xffffffff, z, o); s += __shfl_xor_sync(0xffffffff, s, o); }
    if (lane == 0) y[row] = logf(z) - s / z;
}
