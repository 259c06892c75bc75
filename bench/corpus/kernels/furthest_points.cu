// Picks points one after another, each the furthest from those before it; the first of equals.
extern "C" __global__ void furthest_points(const int* points, int* picked, int n, int picks) {
    __shared__ unsigned best[4];
    __shared__ int distance[256];
    const int* own = points + blockIdx.x * n * 3;
    int t = threadIdx.x, last = 0;
    for (int i = t; i < n; i += 128) distance[i] = 0x7fffff;
    if (t == 0) picked[blockIdx.x * picks] = 0;
    for (int k = 1; k < picks; k++) {
        unsigned furthest = 0;
        for (int i = t; i < n; i += 128) {
            int sum = 0;
            for (int axis = 0; axis < 3; axis++) {
                int apart = own[i * 3 + axis] - own[last * 3 + axis];
                sum += apart * apart;
            }
            distance[i] = min(distance[i], sum);
            furthest = max(furthest, (unsigned)distance[i] << 8 | (255 - i));
        }
        furthest = __reduce_max_sync(0xffffffffu, furthest);
        if (t % 32 == 0) best[t / 32] = furthest;
        __syncthreads();
        furthest = max(max(best[0], best[1]), max(best[2], best[3]));
        last = 255 - (furthest & 255);
        if (t == 0) picked[blockIdx.x * picks + k] = last;
        __syncthreads();
    }
}
