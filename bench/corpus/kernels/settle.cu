// Halves the elements of a row until all lie below a limit, and counts the turns.
extern "C" __global__ void settle(const float* x, float* y, int* turns, float limit) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    __shared__ float kept[128];
    float v = x[i];
    int count = 0;
    while (__syncthreads_or(fabsf(v) >= limit)) {
        v *= 0.5f;
        count++;
    }
    kept[threadIdx.x] = v;
    __syncthreads();
    y[i] = kept[127 - threadIdx.x];
    if (threadIdx.x == 0) turns[blockIdx.x] = count;
}
