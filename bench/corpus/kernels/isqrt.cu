// Integer square root of unsigned numbers.
__global__ void isqrt(const unsigned* x, unsigned* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned v = x[i];
    unsigned r = (unsigned)sqrt((double)v);
    y[i] = r;
}
