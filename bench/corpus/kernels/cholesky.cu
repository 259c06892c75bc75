// Cholesky factors of G G' + 16 in blocks of 16 x 16 threads.
extern "C" __global__ void cholesky(const float* g, float* l) {
    __shared__ float a[16][17];
    __shared__ float given[16][17];
    int i = threadIdx.y, j = threadIdx.x, at = blockIdx.x * 256 + i * 16 + j;
    given[i][j] = g[at];
    __syncthreads();
    float sum = i == j ? 16.0f : 0.0f;
    for (int k = 0; k < 16; k++) sum += given[i][k] * given[j][k];
    a[i][j] = sum;
    __syncthreads();
    for (int k = 0; k < 16; k++) {
        if (i == k && j == k) a[k][k] = sqrtf(a[k][k]);
        __syncthreads();
        if (i > k && j == k) a[i][k] /= a[k][k];
        __syncthreads();
        if (i >= j && j > k) a[i][j] -= a[i][k] * a[j][k];
        __syncthreads();
    }
    l[at] = i >= j ? a[i][j] : 0.0f;
}
