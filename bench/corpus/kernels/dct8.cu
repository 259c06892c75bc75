// Two-dimensional DCT of blocks of 8x8, rows and then columns.
__global__ void dct8(const float* x, float* y, int width) {
    __shared__ float a[8][9], b[8][9], w[8][8];
    int i = threadIdx.y, j = threadIdx.x;
    w[i][j] = cospif((2 * j + 1) * i / 16.f) * (i ? 0.5f : 0.35355339f);
    a[i][j] = x[(blockIdx.y * 8 + i) * width + blockIdx.x * 8 + j];
    __syncthreads();
    float s = 0.f;
    for (int k = 0; k < 8; k++) s += a[i][k] * w[j][k];
    b[i][j] = s;
    __syncthreads();
    s = 0.f;
    for (int k = 0; k < 8; k++) s += b[k][j] * w[i][k];
    y[(blockIdx.y * 8 + i) * width + blockIdx.x * 8 + j] = s;
}
