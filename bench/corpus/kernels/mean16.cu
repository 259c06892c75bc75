// Rounded mean of neighbours, saturated differences and shifts of 16-bit numbers.
__global__ void mean16(const short* a, const short* b, short* mean, short* apart, short* shifted, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int x = a[i], y = b[i];
    mean[i] = (x + y + 1) >> 1;
    apart[i] = max(-32768, min(32767, x - y));
    shifted[i] = max(-32768, min(32767, x * 4));
}
