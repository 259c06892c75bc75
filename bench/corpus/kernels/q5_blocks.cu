// Blocks of 32 weights in 20 bytes: four bytes of fifth bits, sixteen of nibbles; a scale in half precision each.
// The low nibbles are the first half of the block, the high ones the second; a weight is its code less 16.
#include <cuda_fp16.h>

__global__ void q5_blocks(const unsigned char* packed, const __half* scale, float* y, int blocks) {
  const int b = blockIdx.x * (blockDim.x / 16) + threadIdx.x / 16, j = threadIdx.x % 16;
  if (b >= blocks) return;
  const unsigned char* block = packed + (size_t)b * 20;
  const unsigned fifth = block[0] | block[1] << 8 | block[2] << 16 | (unsigned)block[3] << 24;
  const unsigned nibbles = block[4 + j];
  const float d = __half2float(scale[b]);
  const int low = (nibbles & 15) | ((fifth >> j) & 1) << 4;
  const int high = (nibbles >> 4) | ((fifth >> (j + 16)) & 1) << 4;
  y[b * 32 + j] = (low - 16) * d;
  y[b * 32 + j + 16] = (high - 16) * d;
}
