// Copies rows whose flag is set, zeros the others; counts set flags in a 64-bit number, and the first one.
__global__ void start(long long* count, int* first, int rows) { *count = 0; *first = rows; }
__global__ void select_rows(const float* x, const bool* keep, float* y, long long* count, int* first, int rows, int n) {
    int row = blockIdx.x;
    bool k = keep[row];
    for (int c = threadIdx.x; c < n; c += blockDim.x) y[row * n + c] = k ? x[row * n + c] : 0.f;
    if (threadIdx.x == 0 && k) {
        atomicAdd((unsigned long long*)count, 1ull);
        atomicMin(first, row);
    }
}
