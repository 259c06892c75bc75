// Bilinear samples of an image at given places, zero outside.
__device__ float at(const float* x, int r, int c, int h, int w) {
    return r >= 0 && r < h && c >= 0 && c < w ? x[r * w + c] : 0.f;
}
__global__ void grid_sample(const float* x, const float* grid, float* y, int n, int h, int w) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float u = grid[2 * i], v = grid[2 * i + 1];
    int c = (int)floorf(u), r = (int)floorf(v);
    float a = u - c, b = v - r;
    y[i] = (1.f - b) * ((1.f - a) * at(x, r, c, h, w) + a * at(x, r, c + 1, h, w))
         + b * ((1.f - a) * at(x, r + 1, c, h, w) + a * at(x, r + 1, c + 1, h, w));
}
