// Sums by key in a hash table with open addressing.
__device__ unsigned home(int key) {
    return (unsigned(key) * 2654435761u) >> 22;
}

extern "C" __global__ void clear(int* slots, float* values) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= 1024) return;
    slots[i] = -1;
    values[i] = 0.0f;
}

extern "C" __global__ void aggregate(const int* key, const float* x, int* slots, float* values, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned slot = home(key[i]);
    for (;;) {
        int found = atomicCAS(&slots[slot], -1, key[i]);
        if (found == -1 || found == key[i]) break;
        slot = (slot + 1) % 1024;
    }
    atomicAdd(&values[slot], x[i]);
}

extern "C" __global__ void look_up(const int* slots, const float* values, float* sums, int keys) {
    int key = blockIdx.x * blockDim.x + threadIdx.x;
    if (key >= keys) return;
    float sum = 0.0f;
    for (unsigned slot = home(key); slots[slot] != -1; slot = (slot + 1) & 1023) {
        if (slots[slot] == key) {
            sum = values[slot];
            break;
        }
    }
    sums[key] = sum;
}
