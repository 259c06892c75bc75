// Steps of n -> n / 2 or 3 n + 1 until 1.
extern "C" __global__ void collatz(const int* n, int* steps, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    unsigned long long v = n[i];
    int done = 0;
    while (v != 1) {
        v = v % 2 ? 3 * v + 1 : v / 2;
        done++;
    }
    steps[i] = done;
}
