// Products of tiles of a vector with their reverse, for tiles in which an element is not zero.
extern "C" __global__ void zero_tiles(const float* x, float* y, int tiles) {
    __shared__ float tile[64];
    int t = threadIdx.x;
    for (int k = blockIdx.x; k < tiles; k += gridDim.x) {
        float v = x[k * 64 + t];
        if (!__syncthreads_or(v != 0.0f)) {
            y[k * 64 + t] = 0.0f;
            continue;
        }
        tile[t] = v;
        __syncthreads();
        y[k * 64 + t] = v * tile[63 - t];
    }
}
