// Number-theoretic transform of rows of 256, modulo 998244353.
#define PRIME 998244353u

__device__ unsigned product(unsigned a, unsigned b) {
    return (unsigned)((unsigned long long)a * b % PRIME);
}

__device__ unsigned power(unsigned a, unsigned n) {
    unsigned result = 1;
    for (; n; n >>= 1, a = product(a, a))
        if (n & 1) result = product(result, a);
    return result;
}

extern "C" __global__ void transform(const unsigned* x, unsigned* y) {
    __shared__ unsigned v[256];
    int t = threadIdx.x;
    const unsigned* row = x + blockIdx.x * 256;
    v[__brev(t) >> 24] = row[t];
    v[__brev(t + 128) >> 24] = row[t + 128];
    __syncthreads();
    for (int half = 1; half < 256; half *= 2) {
        int j = t % half, at = t / half * 2 * half + j;
        unsigned a = v[at], b = product(v[at + half], power(3, (PRIME - 1) / (2 * half) * j));
        unsigned sum = a + b, apart = a + PRIME - b;
        v[at] = sum >= PRIME ? sum - PRIME : sum;
        v[at + half] = apart >= PRIME ? apart - PRIME : apart;
        __syncthreads();
    }
    y[blockIdx.x * 256 + t] = v[t];
    y[blockIdx.x * 256 + t + 128] = v[t + 128];
}
