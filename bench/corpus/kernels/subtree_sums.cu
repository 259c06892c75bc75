// Sums of all subtrees of a binary tree that is stored as a heap, by recursion.
__device__ float below(const float* x, int i, int n) {
    if (i >= n) return 0.0f;
    return x[i] + below(x, 2 * i + 1, n) + below(x, 2 * i + 2, n);
}

extern "C" __global__ void subtree_sums(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = below(x, i, n);
}
