// Running maximum of rows and where it is; of equal ones the latest.
__global__ void cummax(const int* x, int* y, int* where, int n) {
    __shared__ int tops[8], places[8];
    int t = threadIdx.x, lane = t % 32, warp = t / 32;
    int carry = INT_MIN, place = 0;
    for (int first = 0; first < n; first += 256) {
        int i = first + t;
        int v = i < n ? x[blockIdx.x * n + i] : INT_MIN, w = i;
        for (int o = 1; o < 32; o *= 2) {
            int other = __shfl_up_sync(0xffffffff, v, o), at = __shfl_up_sync(0xffffffff, w, o);
            if (lane >= o && other > v) { v = other; w = at; }
        }
        if (lane == 31) { tops[warp] = v; places[warp] = w; }
        __syncthreads();
        int before = carry, at = place;
        for (int k = 0; k < warp; k++) if (tops[k] >= before) { before = tops[k]; at = places[k]; }
        if (before > v) { v = before; w = at; }
        if (i < n) { y[blockIdx.x * n + i] = v; where[blockIdx.x * n + i] = w; }
        for (int k = 0; k < 8; k++) if (tops[k] >= carry) { carry = tops[k]; place = places[k]; }
        __syncthreads();
    }
}
