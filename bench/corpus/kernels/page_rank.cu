// A step of PageRank: nodes give their rank to the nodes that they link to, those without links to all.
extern "C" __global__ void begin(float* next, float* loose, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) next[i] = 0.0f;
    if (i == 0) *loose = 0.0f;
}

extern "C" __global__ void give(const int* links, const float* rank, float* next, float* loose, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int degree = 0;
    for (int k = 0; k < 4; k++) degree += links[i * 4 + k] >= 0;
    if (degree == 0) {
        atomicAdd(loose, rank[i]);
        return;
    }
    for (int k = 0; k < 4; k++)
        if (links[i * 4 + k] >= 0) atomicAdd(&next[links[i * 4 + k]], rank[i] / degree);
}

extern "C" __global__ void damp(float* next, const float* loose, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) next[i] = 0.15f / n + 0.85f * (next[i] + *loose / n);
}
