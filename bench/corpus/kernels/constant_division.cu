// Quotients and remainders by 10007, by a multiplication with a reciprocal.
extern "C" __global__ void constant_division(const unsigned* x, unsigned* quotient, unsigned* rest, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned q = (unsigned)(x[i] * 1757988013ull >> 44);
    quotient[i] = q;
    rest[i] = x[i] - q * 10007u;
}
