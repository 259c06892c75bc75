// Sorts rows of up to 256 numbers by a bitonic network in shared memory, a block a row.
__global__ void bitonic_sort(const int* x, int* y, int columns) {
  __shared__ int row[256];
  int t = threadIdx.x;
  row[t] = t < columns ? x[blockIdx.x * columns + t] : 2147483647;
  __syncthreads();  // the row is there
  for (int size = 2; size <= 256; size *= 2) {
    for (int step = size / 2; step > 0; step /= 2) {
      int other = t ^ step;
      if (other > t) {
        int a = row[t], b = row[other];
        bool up = (t & size) == 0;
        if (up ? a > b : a < b) {
          row[t] = b;
          row[other] = a;
        }
      }
      __syncthreads();  // a step is done
    }
  }
  if (t < columns) y[blockIdx.x * columns + t] = row[t];
}
