// Numbers runs of equal elements from zero, a block a row.
__global__ void runs(const signed char* x, int* y, int* total, int n) {
    __shared__ int sums[8];
    int t = threadIdx.x, lane = t % 32, warp = t / 32, carry = 0;
    const signed char* row = x + blockIdx.x * n;
    for (int first = 0; first < n; first += 256) {
        int i = first + t;
        int begins = i > 0 && i < n && row[i] != row[i - 1];
        unsigned votes = __ballot_sync(0xffffffff, begins);
        int rank = __popc(votes & (2u << lane) - 1);
        if (lane == 0) sums[warp] = __popc(votes);
        __syncthreads();
        int before = carry;
        for (int w = 0; w < warp; w++) before += sums[w];
        if (i < n) y[blockIdx.x * n + i] = before + rank;
        for (int w = 0; w < 8; w++) carry += sums[w];
        __syncthreads();
    }
    if (t == 0) total[blockIdx.x] = carry + 1;
}
