// Stable order of rows of up to 256 keys: a radix sort by single bits, a block a row.
__global__ void digit_sort(const unsigned char* key, int* order, int columns) {
  __shared__ int items[256];
  __shared__ int zeros_of[8];
  int t = threadIdx.x, lane = t % 32, warp = t / 32;
  int item = t < columns ? key[blockIdx.x * columns + t] * 256 + t : 0xffff;
  for (int bit = 8; bit < 16; bit++) {
    bool one = (item >> bit & 1) != 0;
    unsigned zeros = __ballot_sync(0xffffffff, !one);
    if (lane == 0) zeros_of[warp] = __popc(zeros);
    __syncthreads();  // the counts are there
    int before = __popc(zeros & ((1u << lane) - 1)), all = 0;
    for (int w = 0; w < 8; w++) {
      if (w < warp) before += zeros_of[w];
      all += zeros_of[w];
    }
    items[one ? all + t - before : before] = item;
    __syncthreads();  // a pass is done
    item = items[t];
  }
  if (t < columns) order[blockIdx.x * columns + t] = item & 255;
}
