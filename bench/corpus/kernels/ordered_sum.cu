// Column sums in a fixed order: blocks add their part when it is their turn (semaphores of attention's backward).
__global__ void clear(float* y, unsigned* turn, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 0.f;
    if (i == 0) *turn = 0;
}
__global__ void ordered_sum(const float* x, float* y, unsigned* turn, int rows, int n, int each) {
    int c = threadIdx.x, first = blockIdx.x * each, last = min(rows, first + each);
    float s = 0.f;
    for (int r = first; r < last; r++) s += x[r * n + c];
    if (c == 0) while (atomicAdd(turn, 0u) != blockIdx.x) __nanosleep(20);
    __syncthreads();
    __threadfence();
    y[c] += s;
    __threadfence();
    __syncthreads();
    if (c == 0) atomicAdd(turn, 1u);
}
