// Adds overlapping 3x3 patches (stride 2, padding 1) back into an image, a thread an element.
__global__ void col2im(const float* columns, float* image, int channels, int h, int w, int oh, int ow) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= channels * h * w) return;
    int x = i % w + 1, y = i / w % h + 1, c = i / (w * h);
    int y0 = y < 3 ? 0 : (y - 3) / 2 + 1, y1 = min(y / 2 + 1, oh);
    int x0 = x < 3 ? 0 : (x - 3) / 2 + 1, x1 = min(x / 2 + 1, ow);
    float sum = 0.f;
    for (int a = y0; a < y1; a++)
        for (int b = x0; b < x1; b++)
            sum += columns[(((c * 3 + y - 2 * a) * 3 + x - 2 * b) * oh + a) * ow + b];
    image[i] = sum;
}
