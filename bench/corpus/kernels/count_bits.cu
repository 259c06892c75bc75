// Number of bits that are set from one place up to another of a bitmap, a warp for each pair of places.
__global__ void count_bits(const unsigned* bitmap, const int* from, const int* to, int* y, int pairs) {
  const int pair = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (pair >= pairs) return;
  const int first = min(from[pair], to[pair]), last = max(from[pair], to[pair]);
  int s = 0;
  for (int w = first / 32 + lane; w * 32 < last; w += 32) {
    unsigned bits = bitmap[w];
    if (w * 32 < first) bits &= ~0u << (first & 31);
    if (w * 32 + 32 > last) bits &= (1u << (last & 31)) - 1;
    s += __popc(bits);
  }
  s = __reduce_add_sync(0xffffffff, s);
  if (lane == 0) y[pair] = s;
}
