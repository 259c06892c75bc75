// Packs whether numbers exceed a limit into words, the first in the lowest bit, and counts them.
__global__ void clear(int* count) { *count = 0; }

__global__ void pack(const int* x, unsigned* words, int* count, int n, int limit) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  bool above = i < n && x[i] > limit;
  unsigned word = __ballot_sync(0xffffffff, above);
  if (threadIdx.x % 32 == 0 && i < n) {
    words[i / 32] = word;
    atomicAdd(count, __popc(word));
  }
}
