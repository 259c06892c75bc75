// A filter of five taps that each thread keeps in an array of its own.
extern "C" __global__ void tap_filter(const float* x, const float* taps, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float weights[5], values[8];
    for (int k = 0; k < 5; k++) weights[k] = taps[k];
    for (int k = 0; k < 8; k++) {
        int at = i + k - 2;
        values[k] = k < 5 && at >= 0 && at < n ? x[at] : 0.0f;
    }
    float sum = 0.0f;
    for (int k = 0; k < 5; k++) sum += weights[k] * values[k];
    y[i] = sum;
}
