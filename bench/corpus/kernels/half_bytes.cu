// Rows of halves as bytes, scaled by a power of two that follows from the largest magnitude; rounded half to even.
#include <cuda_fp16.h>

__global__ void half_bytes(const __half2* x, signed char* code, int* exponent, int pairs) {
  const int row = blockIdx.x, lane = threadIdx.x;
  const __half2* in = x + (size_t)row * pairs;
  __half2 most = __float2half2_rn(0.f);
  for (int i = lane; i < pairs; i += 32) most = __hmax2(most, __habs2(in[i]));
  float top = fmaxf(__low2float(most), __high2float(most));
  for (int m = 16; m; m >>= 1) top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, m));
  int e = 0;
  if (top > 0.f) frexpf(top, &e);
  const float scale = ldexpf(1.f, 7 - e);
  for (int i = lane; i < pairs; i += 32) {
    const float2 v = __half22float2(in[i]);
    code[(row * pairs + i) * 2] = (signed char)max(-127, min(127, __float2int_rn(v.x * scale)));
    code[(row * pairs + i) * 2 + 1] = (signed char)max(-127, min(127, __float2int_rn(v.y * scale)));
  }
  if (lane == 0) exponent[row] = e;
}
