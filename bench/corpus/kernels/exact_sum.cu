// Sums of two numbers and what rounding has cut off.
extern "C" __global__ void exact_sum(const float* a, const float* b, float* sum, float* rest, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float x = a[i], y = b[i], s = x + y;
    float part = s - x;
    sum[i] = s;
    rest[i] = (x - (s - part)) + (y - part);
}
