// Kullback-Leibler divergence of rows, from targets and logarithms of predictions.
extern "C" __global__ void divergence_loss(const float* target, const float* predicted, float* loss, int columns) {
    __shared__ float part[4];
    const float* t = target + blockIdx.x * columns;
    const float* p = predicted + blockIdx.x * columns;
    float sum = 0.0f;
    for (int c = threadIdx.x; c < columns; c += 128)
        if (t[c] > 0.0f) sum += t[c] * (logf(t[c]) - p[c]);
    for (int o = 16; o; o /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, o);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) loss[blockIdx.x] = part[0] + part[1] + part[2] + part[3];
}
