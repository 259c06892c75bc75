// Fills row offsets (rows + 1 of them), then sums each row between two of them (llama.cpp 21181).
__global__ void fill(int* offsets, int columns, int rows) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= rows) offsets[i] = i * columns;
}
__global__ void sum_rows(const float* x, const int* offsets, float* y, int rows) {
    int row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;
    float s = 0.f;
    for (int i = offsets[row] + threadIdx.x; i < offsets[row + 1]; i += 32) s += x[i];
    for (int o = 16; o > 0; o /= 2) s += __shfl_down_sync(0xffffffff, s, o);
    if (threadIdx.x == 0) y[row] = s;
}
