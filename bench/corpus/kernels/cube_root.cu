// Cube roots of integers, rounded down.
extern "C" __global__ void cube_root(const unsigned* x, unsigned* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned root = 0;
    for (unsigned bit = 1024; bit; bit /= 2) {
        unsigned long long more = root | bit;
        if (more * more * more <= x[i]) root = (unsigned)more;
    }
    y[i] = root;
}
