// Stable sort of rows of 256, by merging runs in shared memory.
extern "C" __global__ void merge_sort(const float* x, float* y, int* order) {
    __shared__ float keys[2][256];
    __shared__ int places[2][256];
    int t = threadIdx.x;
    keys[0][t] = x[blockIdx.x * 256 + t];
    places[0][t] = t;
    __syncthreads();
    int from = 0;
    for (int width = 1; width < 256; width *= 2) {
        float key = keys[from][t];
        int run = t / width;
        int sibling = (run ^ 1) * width;
        bool is_left = run % 2 == 0;
        int low = 0, high = width;  // how many of the sibling run come before
        while (low < high) {
            int middle = (low + high) / 2;
            float other = keys[from][sibling + middle];
            bool before = is_left ? other < key : other <= key;
            if (before) low = middle + 1;
            else high = middle;
        }
        int to = run / 2 * 2 * width + t % width + low;
        keys[from ^ 1][to] = key;
        places[from ^ 1][to] = places[from][t];
        from ^= 1;
        __syncthreads();
    }
    y[blockIdx.x * 256 + t] = keys[from][t];
    order[blockIdx.x * 256 + t] = places[from][t];
}
