// Planes to channels last, through a tile of shared memory.
__global__ void nhwc(const float* x, float* y, int channels, int pixels) {
    __shared__ float tile[32][33];
    int image = blockIdx.z;
    int p0 = blockIdx.x * 32, c0 = blockIdx.y * 32;
    for (int j = threadIdx.y; j < 32; j += 8)
        if (c0 + j < channels && p0 + threadIdx.x < pixels)
            tile[j][threadIdx.x] = x[(image * channels + c0 + j) * pixels + p0 + threadIdx.x];
    __syncthreads();
    for (int j = threadIdx.y; j < 32; j += 8)
        if (p0 + j < pixels && c0 + threadIdx.x < channels)
            y[(image * pixels + p0 + j) * channels + c0 + threadIdx.x] = tile[threadIdx.x][j];
}
