// Dynamic time warping of two series, a block a pair, by diagonals in shared memory.
extern "C" __global__ void time_warping(const float* a, const float* b, float* cost, int n) {
    __shared__ float diagonal[3][65];
    int t = threadIdx.x;  // place in a, from 0
    const float* x = a + blockIdx.x * n;
    const float* y = b + blockIdx.x * n;
    for (int k = 0; k < 3; k++) {
        diagonal[k][t + 1] = INFINITY;
        if (t == 0) diagonal[k][0] = INFINITY;
    }
    __syncthreads();
    for (int d = 0; d < 2 * n - 1; d++) {
        int j = d - t;
        float value = INFINITY;
        if (t < n && j >= 0 && j < n) {
            float left = diagonal[(d + 2) % 3][t + 1], above = diagonal[(d + 2) % 3][t], both = diagonal[(d + 1) % 3][t];
            float least = fminf(fminf(left, above), both);
            value = fabsf(x[t] - y[j]) + (d == 0 ? 0.0f : least);
        }
        diagonal[d % 3][t + 1] = value;
        __syncthreads();
    }
    if (t == n - 1) cost[blockIdx.x] = diagonal[(2 * n - 2) % 3][n];
}
