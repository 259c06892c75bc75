#include <cuda_fp16.h>

// A cache of keys with new tokens put in after the ones that each sequence has; the rest is kept.
__global__ void kv_append(const __half* cache, const __half* fresh, const int* filled, __half* y,
                          int batches, int capacity, int tokens, int width) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= batches * capacity * width) return;
  int c = i % width, position = i / width % capacity, batch = i / (width * capacity);
  int token = position - filled[batch];
  bool isnew = token >= 0 && token < tokens;
  y[i] = isnew ? fresh[(batch * tokens + token) * width + c] : cache[i];
}
