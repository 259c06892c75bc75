// Sums of three neighbours within tiles of 256, through a buffer in global memory.
extern "C" __global__ void staged_smooth(const float* x, float* scaled, float* y) {
    int i = blockIdx.x * 256 + threadIdx.x, t = threadIdx.x;
    scaled[i] = x[i] * 0.5f;
    __syncthreads();
    float sum = scaled[i];
    if (t > 0) sum += scaled[i - 1];
    if (t < 255) sum += scaled[i + 1];
    y[i] = sum;
}
