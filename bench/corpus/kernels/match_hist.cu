// Histogram of bytes with one atomic for all lanes of a warp that have the same value.
__global__ void zero(unsigned* y) { y[threadIdx.x] = 0; }
__global__ void match_hist(const unsigned char* x, unsigned* y, int n) {
    __shared__ unsigned count[256];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) count[i] = 0;
    __syncthreads();
    for (int first = blockIdx.x * blockDim.x; first < n; first += gridDim.x * blockDim.x) {
        int i = first + threadIdx.x, lane = threadIdx.x % 32;
        unsigned active = __ballot_sync(0xffffffff, i < n);
        if (i < n) {
            unsigned same = __match_any_sync(active, (int)x[i]);
            if (lane == __ffs(same) - 1) atomicAdd(&count[x[i]], __popc(same));
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x) if (count[i]) atomicAdd(&y[i], count[i]);
}
