// Bits of boxes j > i whose overlap with box i is more than half of the union.
__global__ void nms_bits(const int* boxes, unsigned long long* mask, int n) {
    __shared__ int other[64][4];
    int i = blockIdx.y * 64 + threadIdx.x, first = blockIdx.x * 64, count = min(n - first, 64);
    if (threadIdx.x < count)
        for (int k = 0; k < 4; k++) other[threadIdx.x][k] = boxes[(first + threadIdx.x) * 4 + k];
    __syncthreads();
    if (i >= n) return;
    int x = boxes[i * 4], y = boxes[i * 4 + 1], w = boxes[i * 4 + 2], h = boxes[i * 4 + 3];
    unsigned long long bits = 0;
    for (int j = 0; j < count; j++) {
        if (first + j <= i) continue;
        int a = max(0, min(x + w, other[j][0] + other[j][2]) - max(x, other[j][0]));
        int b = max(0, min(y + h, other[j][1] + other[j][3]) - max(y, other[j][1]));
        long long shared = (long long)a * b, all = (long long)w * h + (long long)other[j][2] * other[j][3] - shared;
        if (2 * shared > all) bits |= 1ull << j;
    }
    mask[i * gridDim.x + blockIdx.x] = bits;
}
