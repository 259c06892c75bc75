// CUDA's arithmetic device functions.
#pragma once

#include "approximations.h"

namespace cuda_device {

#define CUHOST_MIN_MAX(T, A, B)                                                       \
  inline T min(A a, B b) { return (T)a < (T)b ? (T)a : (T)b; }                        \
  inline T max(A a, B b) { return (T)a < (T)b ? (T)b : (T)a; }
CUHOST_MIN_MAX(int, int, int)
CUHOST_MIN_MAX(unsigned, unsigned, unsigned)
CUHOST_MIN_MAX(unsigned, int, unsigned)
CUHOST_MIN_MAX(unsigned, unsigned, int)
CUHOST_MIN_MAX(long, long, long)
CUHOST_MIN_MAX(unsigned long, unsigned long, unsigned long)
CUHOST_MIN_MAX(unsigned long, long, unsigned long)
CUHOST_MIN_MAX(unsigned long, unsigned long, long)
CUHOST_MIN_MAX(long long, long long, long long)
CUHOST_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)
CUHOST_MIN_MAX(unsigned long long, long long, unsigned long long)
CUHOST_MIN_MAX(unsigned long long, unsigned long long, long long)
#undef CUHOST_MIN_MAX
// For floating-point numbers, CUDA's min and max are fmin and fmax: they ignore a NaN.
inline float min(float a, float b) { return __builtin_fminf(a, b); }
inline float max(float a, float b) { return __builtin_fmaxf(a, b); }
inline double min(double a, double b) { return __builtin_fmin(a, b); }
inline double max(double a, double b) { return __builtin_fmax(a, b); }
inline double min(float a, double b) { return __builtin_fmin(a, b); }
inline double max(float a, double b) { return __builtin_fmax(a, b); }
inline double min(double a, float b) { return __builtin_fmin(a, b); }
inline double max(double a, float b) { return __builtin_fmax(a, b); }

inline unsigned umin(unsigned a, unsigned b) { return min(a, b); }
inline unsigned umax(unsigned a, unsigned b) { return max(a, b); }
inline long long llmin(long long a, long long b) { return min(a, b); }
inline long long llmax(long long a, long long b) { return max(a, b); }
inline unsigned long long ullmin(unsigned long long a, unsigned long long b) { return min(a, b); }
inline unsigned long long ullmax(unsigned long long a, unsigned long long b) { return max(a, b); }

inline int __float_as_int(float v) { return cuhost::bits<int>(v); }
inline unsigned __float_as_uint(float v) { return cuhost::bits<unsigned>(v); }
inline float __int_as_float(int v) { return cuhost::bits<float>(v); }
inline float __uint_as_float(unsigned v) { return cuhost::bits<float>(v); }
inline long long __double_as_longlong(double v) { return cuhost::bits<long long>(v); }
inline double __longlong_as_double(long long v) { return cuhost::bits<double>(v); }

inline float rsqrtf(float v) { return cuhost::approximate_rsqrt(v); }
inline double rsqrt(double v) { return 1.0 / __builtin_sqrt(v); }
inline float __frsqrt_rn(float v) { return (float)rsqrt((double)v); }
inline float __fdividef(float a, float b) { return cuhost::approximate_div(a, b); }
inline float fdividef(float a, float b) { return a / b; }
inline double fdivide(double a, double b) { return a / b; }
inline float __expf(float v) { return cuhost::approximate_fast_exp(v); }
inline float __exp10f(float v) { return cuhost::approximate_fast_exp10(v); }
inline float __logf(float v) { return cuhost::approximate_fast_log(v); }
inline float __log2f(float v) { return cuhost::approximate_fast_log2(v); }
inline float __log10f(float v) { return cuhost::approximate_fast_log10(v); }
inline float __powf(float a, float b) { return cuhost::approximate_ex2(b * __log2f(a)); }
inline float __sinf(float v) { return cuhost::approximate_fast_sin(v); }
inline float __cosf(float v) { return cuhost::approximate_fast_cos(v); }
inline void __sincosf(float v, float* s, float* c) { *s = __sinf(v), *c = __cosf(v); }
inline float __tanf(float v) { return __sinf(v) * cuhost::approximate_rcp(__cosf(v)); }
inline float __tanhf(float v) { return cuhost::approximate_tanh(v); }
inline float __saturatef(float v) { return __builtin_fminf(__builtin_fmaxf(v, 0.0f), 1.0f); }

}  // namespace cuda_device

#define CUDART_INF_F __builtin_inff()
#define CUDART_NAN_F __builtin_nanf("")
#define CUDART_INF __builtin_inf()
#define CUDART_NAN __builtin_nan("")
#define CUDART_PI_F 3.141592654f
