// How products with smaller parts are computed in bfloat16, on Hopper in 3xtf32.
//
// An instruction multiplies twice as many numbers in bfloat16 as in TF32: eight smaller parts by weights, and the elements
// themselves by eight smaller parts of weights. Elements are rounded, not cut off, so that smaller parts are half as
// large. The launch before that of the convolution has split the weights (SPLIT_BEFORE).

__device__ __forceinline__ float rounded(float x) {
  return __uint_as_float((__float_as_uint(x) + 0x1000) & 0xFFFFE000);
}

// Two numbers in bfloat16; the first one is in the lower half.
__device__ __forceinline__ unsigned in_bfloat16(float first, float second) {
  unsigned both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  return both;
}

// Eight elements, rounded, and what instructions in bfloat16 multiply instead of them: the elements, and what they have
// lost. Elements 0 and 4, 1 and 5, 2 and 6, and 3 and 7 are neighbours there, as in the registers of a thread that
// multiplies.
struct CoarseParts {
  float4 larger[2];
  uint4 whole, lost;
};

__device__ __forceinline__ CoarseParts coarse_parts_of(const float4& a, const float4& b) {
  CoarseParts parts;
  float4 high_a = {rounded(a.x), rounded(a.y), rounded(a.z), rounded(a.w)};
  float4 high_b = {rounded(b.x), rounded(b.y), rounded(b.z), rounded(b.w)};
  parts.larger[0] = high_a;
  parts.larger[1] = high_b;
  parts.whole = {in_bfloat16(a.x, b.x), in_bfloat16(a.y, b.y), in_bfloat16(a.z, b.z), in_bfloat16(a.w, b.w)};
  parts.lost = {in_bfloat16(a.x - high_a.x, b.x - high_b.x), in_bfloat16(a.y - high_a.y, b.y - high_b.y),
                in_bfloat16(a.z - high_a.z, b.z - high_b.z), in_bfloat16(a.w - high_a.w, b.w - high_b.w)};
  return parts;
}
