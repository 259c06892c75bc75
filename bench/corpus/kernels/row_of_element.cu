// For each element of a ragged array, the row it belongs to and its place there; rows may be empty.
// The first launch adds up lengths, the second one finds rows by bisection.
__global__ void offsets_of(const int* length, int* offset, int rows) {
  __shared__ int part[256];
  const int t = threadIdx.x;
  part[t] = t < rows ? length[t] : 0;
  __syncthreads();
  for (int step = 1; step < 256; step *= 2) {
    const int v = t >= step ? part[t - step] : 0;
    __syncthreads();
    part[t] += v;
    __syncthreads();
  }
  if (t < rows) offset[t + 1] = part[t];
  if (t == 0) offset[0] = 0;
}

__global__ void row_of_element(const int* offset, int* row, int* place, int rows, int capacity) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= capacity) return;
  if (i >= offset[rows]) {
    row[i] = place[i] = -1;
    return;
  }
  int low = 0, high = rows;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (offset[middle] <= i) low = middle;
    else high = middle;
  }
  row[i] = low;
  place[i] = i - offset[low];
}
