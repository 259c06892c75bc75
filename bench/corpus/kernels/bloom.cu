// A Bloom filter of 8192 bits with three hashes.
__device__ unsigned place(unsigned key, int k) {
    key ^= key >> 16;
    key *= 0x85ebca6bu + 2u * k;
    key ^= key >> 13;
    key *= 0xc2b2ae35u;
    return (key ^ key >> 16) & 8191;
}

extern "C" __global__ void clear(unsigned* bits) {
    bits[blockIdx.x * blockDim.x + threadIdx.x] = 0;
}

extern "C" __global__ void insert(const unsigned* keys, unsigned* bits, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    for (int k = 0; k < 3; k++) {
        unsigned at = place(keys[i], k);
        atomicOr(&bits[at / 32], 1u << at % 32);
    }
}

extern "C" __global__ void ask(const unsigned* queries, const unsigned* bits, int* there, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int all = 1;
    for (int k = 0; k < 3; k++) {
        unsigned at = place(queries[i], k);
        all &= bits[at / 32] >> at % 32 & 1;
    }
    there[i] = all;
}
