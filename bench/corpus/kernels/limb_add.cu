// Sums of integers of 1024 bits: a warp each, carries by two votes.
extern "C" __global__ void limb_add(const unsigned* a, const unsigned* b, unsigned* sum, unsigned* carry, int rows) {
    int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    unsigned x = a[row * 32 + lane];
    unsigned s = x + b[row * 32 + lane];
    unsigned long long made = __ballot_sync(0xffffffffu, s < x);
    unsigned long long passed = __ballot_sync(0xffffffffu, s == 0xffffffffu);
    made <<= 1;
    unsigned long long carries = (made + passed) ^ passed;
    sum[row * 32 + lane] = s + (unsigned)(carries >> lane & 1);
    if (lane == 0) carry[row] = (unsigned)(carries >> 32);
}
