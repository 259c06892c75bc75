// Longest increasing path from the top left: tiles of rows wait for the row of tiles above, column by column.
__global__ void prepare(int* done, int rows) { if (threadIdx.x < rows) done[threadIdx.x] = 0; }
__global__ void wavefront(const int* x, int* best, int* done, int rows, int n) {
    int r = blockIdx.x, lane = threadIdx.x;
    for (int c = 0; c < n; c += 32) {
        if (r > 0 && lane == 0) {
            while (*(volatile int*)&done[r - 1] < c + 32) {}
            __threadfence();
        }
        __syncwarp();
        int above = r > 0 ? best[(r - 1) * n + c + lane] : 0;
        best[r * n + c + lane] = max(above, 0) + x[r * n + c + lane];
        __threadfence();
        __syncwarp();
        if (lane == 0) *(volatile int*)&done[r] = c + 32;
    }
}
