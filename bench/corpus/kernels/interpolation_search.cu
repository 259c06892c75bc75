// Places of numbers in an ascending list, by interpolation.
extern "C" __global__ void prefix(const int* gaps, int* list, int n) {
    int sum = 0;
    for (int i = 0; i < n; i++) list[i] = sum += gaps[i];
}

extern "C" __global__ void interpolation_search(const int* list, const int* wanted, int* place, int n, int m) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= m) return;
    int key = wanted[i], low = 0, high = n - 1;
    while (low < high && key > list[low] && key <= list[high]) {
        int width = list[high] - list[low];
        int middle = low + (int)((long long)(key - list[low]) * (high - low) / width);
        if (list[middle] < key) low = middle + 1;
        else if (middle > low && list[middle - 1] >= key) high = middle - 1;
        else low = high = middle;
    }
    place[i] = key <= list[low] ? low : n;
}
