// Running sums of each row that begin anew where a flag is set. A warp a row: lanes scan 32 elements
// and carry the last sum on.
__global__ void flagged_sums(const int* x, const unsigned char* flag, int* y, int rows, int columns) {
  int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  int carried = 0;
  for (int first = 0; first < columns; first += 32) {
    int c = first + lane;
    int sum = c < columns ? x[row * columns + c] : 0;
    bool head = c < columns && flag[row * columns + c];
    unsigned heads = __ballot_sync(0xffffffffu, head);
    unsigned before = heads & (0xffffffffu >> (31 - lane));
    int start = before ? 31 - __clz(before) : 0;
    for (int step = 1; step < 32; step *= 2) {
      int other = __shfl_up_sync(0xffffffffu, sum, step);
      if (lane - step >= start) sum += other;
    }
    if (!before) sum += carried;
    if (c < columns) y[row * columns + c] = sum;
    carried = __shfl_sync(0xffffffffu, sum, 31);
  }
}
