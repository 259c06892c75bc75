// Sorts eight numbers a thread by a network of 19 comparisons.
__device__ void order(float& a, float& b) {
    float low = fminf(a, b);
    b = fmaxf(a, b);
    a = low;
}

extern "C" __global__ void sort_eight(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v[8];
    for (int k = 0; k < 8; k++) v[k] = x[i * 8 + k];
    order(v[0], v[2]); order(v[1], v[3]); order(v[4], v[6]); order(v[5], v[7]);
    order(v[0], v[4]); order(v[1], v[5]); order(v[2], v[6]); order(v[3], v[7]);
    order(v[0], v[1]); order(v[2], v[3]); order(v[4], v[5]); order(v[6], v[7]);
    order(v[2], v[4]); order(v[3], v[5]);
    order(v[1], v[4]); order(v[3], v[6]);
    order(v[1], v[2]); order(v[3], v[4]); order(v[5], v[6]);
    for (int k = 0; k < 8; k++) y[i * 8 + k] = v[k];
}
