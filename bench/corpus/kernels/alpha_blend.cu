// Blends 50 splats front to back into each pixel of a tile of 16x8, loading them in batches.
__global__ void alpha_blend(const float* centers, const float* opacity, const float* color, float* image, int* used, int count, int width, int height) {
    __shared__ float px[128], py[128], po[128], pc[128];
    int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 8 + threadIdx.y;
    int t = threadIdx.y * blockDim.x + threadIdx.x;
    float left = 1.f, sum = 0.f;
    int n = 0;
    for (int first = 0; first < count; first += 128) {
        __syncthreads();
        if (first + t < count) {
            px[t] = centers[2 * (first + t)];
            py[t] = centers[2 * (first + t) + 1];
            po[t] = opacity[first + t];
            pc[t] = color[first + t];
        }
        __syncthreads();
        for (int j = 0; j < min(128, count - first); j++) {
            float dx = px[j] - x, dy = py[j] - y;
            float alpha = po[j] / (1.f + dx * dx + dy * dy);
            sum += left * alpha * pc[j];
            left *= 1.f - alpha;
            n++;
        }
    }
    if (x < width && y < height) {
        image[y * width + x] = sum + left;
        used[y * width + x] = n;
    }
}
