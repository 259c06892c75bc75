// The index of the first largest element of each row, a warp a row.
__global__ void argmax(const int* x, int* y, int columns) {
  const int* row = x + blockIdx.x * columns;
  int best = 0, at = columns;
  for (int c = threadIdx.x; c < columns; c += 32)
    if (at == columns || row[c] > best) {
      best = row[c];
      at = c;
    }
  for (int step = 16; step > 0; step /= 2) {
    int other = __shfl_xor_sync(0xffffffff, best, step);
    int place = __shfl_xor_sync(0xffffffff, at, step);
    if (other > best || (other == best && place < at)) {
      best = other;
      at = place;
    }
  }
  if (threadIdx.x == 0) y[blockIdx.x] = at;
}
