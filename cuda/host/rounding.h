// CUDA's conversion intrinsics, and its arithmetic with a rounding mode.
#pragma once

#include <cfenv>

#include "arithmetic.h"

namespace cuhost {

// Volatile operands keep the optimizer from computing before or after the mode is in force.
template <class F>
__attribute__((noinline)) auto rounded(int mode, F&& compute) {
  int before = std::fegetround();
  std::fesetround(mode);
  auto result = compute();
  std::fesetround(before);
  return result;
}

template <class T>
inline auto to_whole(int mode, T v) {
  if constexpr (sizeof(T) == 4) {
    return mode == FE_TOWARDZERO ? __builtin_truncf(v)
           : mode == FE_DOWNWARD ? __builtin_floorf(v)
           : mode == FE_UPWARD   ? __builtin_ceilf(v)
                                 : __builtin_rintf(v);
  } else {
    return mode == FE_TOWARDZERO ? __builtin_trunc(v)
           : mode == FE_DOWNWARD ? __builtin_floor(v)
           : mode == FE_UPWARD   ? __builtin_ceil(v)
                                 : __builtin_rint(v);
  }
}

}  // namespace cuhost

namespace cuda_device {

#define CUHOST_MODES(X, ...)                                                             \
  X(rn, FE_TONEAREST, __VA_ARGS__)                                                       \
  X(rz, FE_TOWARDZERO, __VA_ARGS__)                                                      \
  X(rd, FE_DOWNWARD, __VA_ARGS__)                                                        \
  X(ru, FE_UPWARD, __VA_ARGS__)

#define CUHOST_TO_WHOLE(suffix, mode, from, F, to, I)                                    \
  inline I __##from##2##to##_##suffix(F v) {                                             \
    return cuhost::converted<I>(cuhost::to_whole(mode, v));                              \
  }
#define CUHOST_FROM_WHOLE(suffix, mode, from, I, to, F)                                  \
  inline F __##from##2##to##_##suffix(I v) {                                             \
    volatile I given = v;                                                                \
    return cuhost::rounded(mode, [&] { volatile F result = (F)given; return (F)result; }); \
  }
#define CUHOST_BETWEEN(name, I)                                                          \
  CUHOST_MODES(CUHOST_TO_WHOLE, float, float, name, I)                                   \
  CUHOST_MODES(CUHOST_TO_WHOLE, double, double, name, I)                                 \
  CUHOST_MODES(CUHOST_FROM_WHOLE, name, I, float, float)
CUHOST_BETWEEN(int, int)
CUHOST_BETWEEN(uint, unsigned)
CUHOST_BETWEEN(ll, long long)
CUHOST_BETWEEN(ull, unsigned long long)
CUHOST_MODES(CUHOST_FROM_WHOLE, ll, long long, double, double)
CUHOST_MODES(CUHOST_FROM_WHOLE, ull, unsigned long long, double, double)
CUHOST_MODES(CUHOST_FROM_WHOLE, double, double, float, float)
inline double __int2double_rn(int v) { return v; }
inline double __uint2double_rn(unsigned v) { return v; }
#undef CUHOST_BETWEEN
#undef CUHOST_FROM_WHOLE
#undef CUHOST_TO_WHOLE

#define CUHOST_ARITHMETIC(suffix, mode, name, T, expression)                             \
  inline T name##_##suffix(T a, T b) {                                                   \
    volatile T x = a, y = b;                                                             \
    return cuhost::rounded(mode, [&] { volatile T result = expression; return (T)result; }); \
  }
CUHOST_MODES(CUHOST_ARITHMETIC, __fadd, float, x + y)
CUHOST_MODES(CUHOST_ARITHMETIC, __fsub, float, x - y)
CUHOST_MODES(CUHOST_ARITHMETIC, __fmul, float, x * y)
CUHOST_MODES(CUHOST_ARITHMETIC, __fdiv, float, x / y)
CUHOST_MODES(CUHOST_ARITHMETIC, __dadd, double, x + y)
CUHOST_MODES(CUHOST_ARITHMETIC, __dsub, double, x - y)
CUHOST_MODES(CUHOST_ARITHMETIC, __dmul, double, x * y)
CUHOST_MODES(CUHOST_ARITHMETIC, __ddiv, double, x / y)
#undef CUHOST_ARITHMETIC
#define CUHOST_FUNCTION(suffix, mode, name, T, expression)                               \
  inline T name##_##suffix(T v) {                                                        \
    volatile T x = v;                                                                    \
    return cuhost::rounded(mode, [&] { volatile T result = expression; return (T)result; }); \
  }
CUHOST_MODES(CUHOST_FUNCTION, __frcp, float, 1.0f / x)
CUHOST_MODES(CUHOST_FUNCTION, __drcp, double, 1.0 / x)
CUHOST_MODES(CUHOST_FUNCTION, __fsqrt, float, __builtin_sqrtf(x))
CUHOST_MODES(CUHOST_FUNCTION, __dsqrt, double, __builtin_sqrt(x))
#undef CUHOST_FUNCTION
#define CUHOST_FUSED(suffix, mode, name, T, function)                                    \
  inline T name##_##suffix(T a, T b, T c) {                                              \
    volatile T x = a, y = b, z = c;                                                      \
    return cuhost::rounded(mode, [&] { volatile T result = function(x, y, z); return (T)result; }); \
  }
CUHOST_MODES(CUHOST_FUSED, __fmaf, float, __builtin_fmaf)
CUHOST_MODES(CUHOST_FUSED, __fma, double, __builtin_fma)
#undef CUHOST_FUSED
#undef CUHOST_MODES

inline long lrintf(float v) { return cuhost::converted<long>(__builtin_rintf(v)); }
inline long lrint(double v) { return cuhost::converted<long>(__builtin_rint(v)); }
inline long lroundf(float v) { return cuhost::converted<long>(__builtin_roundf(v)); }
inline long lround(double v) { return cuhost::converted<long>(__builtin_round(v)); }
inline long long llrintf(float v) { return lrintf(v); }
inline long long llrint(double v) { return lrint(v); }
inline long long llroundf(float v) { return lroundf(v); }
inline long long llround(double v) { return lround(v); }
inline int __double2hiint(double v) { return (int)(cuhost::bits<unsigned long long>(v) >> 32); }
inline int __double2loint(double v) { return (int)cuhost::bits<unsigned long long>(v); }
inline double __hiloint2double(int high, int low) {
  return cuhost::bits<double>((unsigned long long)(unsigned)high << 32 | (unsigned)low);
}

}  // namespace cuda_device
