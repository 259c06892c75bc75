#include <cuda_fp16.h>

// y = base + x B for a B of few rows, as LoRA adds what an adapter contributes to its layer.
// A thread computes one column of TOKENS tokens.
__global__ void lora_expand(const half* x, const half* b, const half* base, half* y, int tokens,
                            int rank, int columns) {
  int column = blockIdx.x * blockDim.x + threadIdx.x;
  if (column >= columns) return;
  int first = blockIdx.y * TOKENS;
  for (int token = first; token < first + TOKENS && token < tokens; ++token) {
    float sum = __half2float(base[token * columns + column]);
    for (int r = 0; r < rank; ++r) {
      sum += __half2float(x[token * rank + r]) * __half2float(b[r * columns + column]);
    }
    y[token * columns + column] = __float2half(sum);
  }
}
