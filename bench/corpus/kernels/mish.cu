// x tanh(log(1 + exp(x))).
__global__ void mish(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = x[i];
    float e = expf(fminf(v, 30.f));
    float w = e * (e + 2.f);
    y[i] = v > 30.f ? v : v * w / (w + 2.f);
}
