// Run-length decoding: each output looks for its run among the ends of runs.
extern "C" __global__ void run_expand(const int* counts, const int* values, int* out, int runs, int size) {
    __shared__ int ends[256];
    int t = threadIdx.x;
    ends[t] = t < runs ? counts[t] : 0;
    __syncthreads();
    for (int reach = 1; reach < 256; reach *= 2) {
        int add = t >= reach ? ends[t - reach] : 0;
        __syncthreads();
        ends[t] += add;
        __syncthreads();
    }
    int i = blockIdx.x * 256 + t;
    if (i >= size) return;
    int low = 0, high = runs;  // the first run that ends after i
    while (low < high) {
        int middle = (low + high) / 2;
        if (ends[middle] > i) high = middle;
        else low = middle + 1;
    }
    out[i] = low < runs ? values[low] : -1;
}
