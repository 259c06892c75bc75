// Steps from a corner to all free cells of a grid of 16 x 16 that can be reached, -1 for others.
extern "C" __global__ void flood_fill(const unsigned char* wall, int* steps) {
    __shared__ int distance[256];
    __shared__ short queue[256];
    __shared__ int first, last, next;
    int t = threadIdx.x;
    const unsigned char* own = wall + blockIdx.x * 256;
    for (int i = t; i < 256; i += 32) distance[i] = -1;
    __syncthreads();
    if (t == 0) {
        first = next = 0;
        last = own[0] ? 0 : 1;
        queue[0] = 0;
        if (last) distance[0] = 0;
        next = last;
    }
    __syncthreads();
    while (first < last) {
        for (int k = first + t; k < last; k += 32) {
            int at = queue[k], r = at / 16, c = at % 16;
            for (int side = 0; side < 4; side++) {
                int row = r + (side == 0) - (side == 1), column = c + (side == 2) - (side == 3);
                if (row < 0 || row > 15 || column < 0 || column > 15 || own[row * 16 + column]) continue;
                int to = row * 16 + column;
                if (atomicCAS(&distance[to], -1, atomicAdd(&distance[at], 0) + 1) == -1) queue[atomicAdd(&next, 1)] = to;
            }
        }
        __syncthreads();
        if (t == 0) {
            first = last;
            last = next;
        }
        __syncthreads();
    }
    for (int i = t; i < 256; i += 32) steps[blockIdx.x * 256 + i] = distance[i];
}
