// The k largest numbers of each row in falling order and their columns, a warp a row; of equal
// numbers the one in the earlier column comes first.
__global__ void top_k(const float* x, float* value, int* index, int rows, int columns, int k) {
  int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  const float* in = x + (size_t)row * columns;
  float last = INFINITY;
  int last_at = -1;
  for (int round = 0; round < k; round++) {
    float best = -INFINITY;
    int at = columns;
    for (int c = lane; c < columns; c += 32) {
      float v = in[c];
      bool left = v < last || (v == last && c > last_at);
      if (left && (at == columns || v > best)) {
        best = v;
        at = c;
      }
    }
    for (int step = 16; step > 0; step /= 2) {
      float other = __shfl_xor_sync(0xffffffff, best, step);
      int place = __shfl_xor_sync(0xffffffff, at, step);
      if (other > best || (other == best && place < at)) {
        best = other;
        at = place;
      }
    }
    last = best;
    last_at = at;
    if (lane == 0) {
      value[row * k + round] = best;
      index[row * k + round] = at;
    }
  }
}
