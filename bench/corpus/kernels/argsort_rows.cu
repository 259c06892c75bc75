// The order that sorts each row, with the largest first and equal keys as they stand.
__global__ void argsort_rows(const signed char* keys, int* order, int columns) {
  __shared__ int row[64];
  int t = threadIdx.x;
  if (t < columns) row[t] = keys[blockIdx.x * columns + t];
  __syncthreads();
  if (t >= columns) return;
  int rank = 0;
  for (int j = 0; j < columns; j++) rank += row[j] > row[t] || (row[j] == row[t] && j < t);
  order[blockIdx.x * columns + rank] = t;
}
