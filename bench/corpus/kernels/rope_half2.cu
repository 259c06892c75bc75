// Rotary embedding of pairs of neighbours in half precision, by tables of cosines and sines for each
// position. Products are computed in single precision.
#include <cuda_fp16.h>

__global__ void rope_half2(const __half2* x, const float* cosine, const float* sine, const int* position, __half2* y,
                           int tokens, int heads, int pairs) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= tokens * heads * pairs) return;
  int pair = i % pairs, token = i / (heads * pairs);
  float c = cosine[position[token] * pairs + pair], s = sine[position[token] * pairs + pair];
  float2 v = __half22float2(x[i]);
  y[i] = __floats2half2_rn(v.x * c - v.y * s, v.x * s + v.y * c);
}
