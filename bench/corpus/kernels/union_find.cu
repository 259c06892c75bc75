// Connected components: each edge hooks the larger root to the smaller one.
extern "C" __global__ void each_alone(int* parent, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) parent[i] = i;
}

__device__ int root(const volatile int* parent, int v) {
    for (int up = parent[v]; up != v; up = parent[v]) v = up;
    return v;
}

extern "C" __global__ void hook(const int* edges, int* parent, int m) {
    int e = blockIdx.x * blockDim.x + threadIdx.x;
    if (e >= m) return;
    int u = edges[2 * e], v = edges[2 * e + 1];
    for (;;) {
        u = root(parent, u);
        v = root(parent, v);
        if (u == v) return;
        int high = max(u, v), low = min(u, v);
        if (atomicCAS(&parent[high], high, low) == high) return;
    }
}

extern "C" __global__ void flatten(const int* parent, int* label, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) label[i] = root(parent, i);
}
