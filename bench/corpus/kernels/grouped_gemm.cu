// Products of groups of rows with a matrix of the group: tiles of 16 rows find their group.
extern "C" __global__ void clear(float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 0.0f;
}

extern "C" __global__ void grouped_gemm(const int* counts, const float* x, const float* w, float* y, int groups) {
    int tile = blockIdx.x, first = 0, g = 0;
    for (; g < groups; g++) {
        int tiles = (counts[g] + 15) / 16;
        if (tile < tiles) break;
        tile -= tiles;
        first += counts[g];
    }
    if (g == groups) return;
    int row = tile * 16 + threadIdx.y;
    if (row >= counts[g]) return;
    float sum = 0.0f;
    for (int k = 0; k < 32; k++) sum += x[(first + row) * 32 + k] * w[(g * 32 + k) * 16 + threadIdx.x];
    y[(first + row) * 16 + threadIdx.x] = sum;
}
