// Split-K product: partial tiles into a workspace, and the last block of a tile adds them up.
__global__ void reset(unsigned* arrived, int tiles) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < tiles) arrived[i] = 0;
}
__global__ void stream_k(const float* a, const float* b, float* c, float* parts, unsigned* arrived, int m, int n, int k, int splits) {
    __shared__ float as[16][17], bs[16][17];
    __shared__ bool last;
    int tx = threadIdx.x, ty = threadIdx.y;
    int row = blockIdx.y * 16 + ty, column = blockIdx.x * 16 + tx;
    int tile = blockIdx.y * gridDim.x + blockIdx.x;
    int chunk = ((k + splits - 1) / splits + 15) / 16 * 16;
    int begin = blockIdx.z * chunk, end = min(k, begin + chunk);
    float sum = 0.f;
    for (int p = begin; p < end; p += 16) {
        as[ty][tx] = row < m && p + tx < end ? a[row * k + p + tx] : 0.f;
        bs[ty][tx] = p + ty < end && column < n ? b[(p + ty) * n + column] : 0.f;
        __syncthreads();
        for (int q = 0; q < 16; q++) sum += as[ty][q] * bs[q][tx];
        __syncthreads();
    }
    int own = ty * 16 + tx;
    parts[(tile * splits + blockIdx.z) * 256 + own] = sum;
    __threadfence();
    __syncthreads();
    if (own == 0) last = atomicAdd(&arrived[tile], 1u) == splits - 1;
    __syncthreads();
    if (!last) return;
    __threadfence();
    float total = 0.f;
    for (int z = 0; z < splits; z++) total += parts[(tile * splits + z) * 256 + own];
    if (row < m && column < n) c[row * n + column] = total;
}
