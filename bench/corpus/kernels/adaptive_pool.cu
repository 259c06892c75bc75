// Adaptive average pooling: windows from floor(i * n / m) to ceil((i + 1) * n / m).
__global__ void adaptive_pool(const float* x, float* y, int channels, int h, int w, int oh, int ow) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= channels * oh * ow) return;
    int c = i / (oh * ow), r = i / ow % oh, s = i % ow;
    int r0 = r * h / oh, r1 = ((r + 1) * h + oh - 1) / oh;
    int s0 = s * w / ow, s1 = ((s + 1) * w + ow - 1) / ow;
    float sum = 0.f;
    for (int a = r0; a < r1; a++)
        for (int b = s0; b < s1; b++) sum += x[(c * h + a) * w + b];
    y[i] = sum / ((r1 - r0) * (s1 - s0));
}
