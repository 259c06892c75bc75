// CUDA's approximate instructions and fast intrinsics, each with the largest error that is documented for it.
//
// No host can reproduce a GPU's approximation, and a kernel may rely on no more than its documented bound: a
// result here lies anywhere within it. Where it lies follows from the operands' bits, so that the same operands
// always give the same result and the errors of a sum do not all point the same way. A result keeps its sign;
// zero, infinity and NaN stay as they are, and so do the results of operands that are zero or infinite. Exact
// powers of two are those that an H200 gave: rcp(4), sqrt(4), rsqrt(4), ex2(3) and lg2(2), but not lg2(0.5).
#pragma once

#include <cstdint>
#include <type_traits>

namespace cuhost {

template <int mantissa, int exponent>
struct Small;  // of half.h and bfloat16.h

template <class To, class From>
inline auto bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "a bit cast keeps the size");
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

// The bits of a type's fraction, and the power of two of its least normal number.
struct Format {
  int fraction_bits, least_power;
};
constexpr Format single_format = {23, -126};
template <class T>
constexpr Format format_of = single_format;
template <int mantissa, int exponent>
constexpr Format format_of<Small<mantissa, exponent>> = {mantissa, 2 - (1 << (exponent - 1))};

// The unit in the last place of a positive number.
inline double unit_of(double v, Format format) {
  int power = (int)(bits<uint64_t>(v) >> 52) - 1023;
  if (power < format.least_power) power = format.least_power;
  return bits<double>((uint64_t)(power - format.fraction_bits + 1023) << 52);
}

inline bool is_power_of_two(double positive) { return bits<uint64_t>(positive) << 12 == 0; }  // or infinite

constexpr uint64_t scrambled(uint64_t v) {  // SplitMix64's, Steele, Lea and Flood 2014
  v = (v ^ v >> 30) * 0xbf58476d1ce4e5b9ull;
  v = (v ^ v >> 27) * 0x94d049bb133111ebull;
  return v ^ v >> 31;
}
constexpr uint64_t hash_of(const char* name) {
  uint64_t hash = 0;
  while (*name) hash = scrambled(hash + (unsigned char)*name++);
  return hash;
}

// The caller's rounding takes half a unit of the error.
inline double approximated(double exact, double error, uint64_t hash, double most, Format format) {
  double size = __builtin_fabs(exact);
  if (!(size < __builtin_inf())) return exact;
  double spread = error - unit_of(size + error, format) / 2;
  if (spread > size) spread = size;
  if (spread > 0) size += spread * (double)(int64_t)hash * 0x1p-63;
  return __builtin_copysign(size < most ? size : most, exact);
}

// The first operand's absolute value is `a`, and the second one's `b`; the result's size is `y`, and the unit
// in its last place `ulp`. No templates: those that the precompiled header uses would be instantiated for each
// kernel.
#define CUHOST_APPROXIMATION(name, result, bound, most)                                          \
  inline double approximate_##name(double x, double x2, Format format) {                         \
    (void)x2;                                                                                    \
    double exact = result, a = __builtin_fabs(x), b = __builtin_fabs(x2), y = __builtin_fabs(exact); \
    if (a == 0 || a == __builtin_inf()) return exact;                                            \
    double ulp = unit_of(y, format);                                                             \
    (void)ulp;                                                                                   \
    constexpr uint64_t salt = hash_of(#name);                                                    \
    uint64_t hash = scrambled(salt + bits<uint64_t>(a) + 0x9e3779b97f4a7c15ull * bits<uint64_t>(b)); \
    return approximated(exact, bound, hash, most, format);                                       \
  }                                                                                              \
  inline float approximate_##name(double x, double x2 = 0) {                                     \
    return (float)approximate_##name(x, x2, single_format);                                      \
  }                                                                                              \
  template <class T>                                                                             \
  inline T approximate_##name(double x) {                                                        \
    return (T)approximate_##name(x, 0, format_of<T>);                                            \
  }
#define CUHOST_OF_TYPE(single, half, bfloat16) \
  (format.fraction_bits == 23 ? single : format.fraction_bits == 10 ? half : bfloat16)
constexpr double unlimited = __builtin_inf(), two_pi = 6.28318530717958647692;

// What 1 / b is taken for: a divisor that is too large has the reciprocal 0, a subnormal one an infinite one.
inline double reciprocal_in_range(double b) {
  double size = __builtin_fabs(b), reciprocal = 1 / b;
  if (size > 0x1p126 && size < __builtin_inf()) return __builtin_copysign(0.0, b);
  return size <= 0x1p-128 ? __builtin_copysign(__builtin_inf(), b) : reciprocal;
}
// Only up to 2 pi and 100 pi errors of sines and cosines are documented, 2^-20.5 and 2^-14.7: they are
// proportional to the angle.
inline double error_of_angle(double a) { return __builtin_exp2(-20.5) * (a > two_pi ? a / two_pi : 1); }

// PTX ISA 9.1, sections 9.7.3 and 9.7.4
CUHOST_APPROXIMATION(div, x * reciprocal_in_range(x2), is_power_of_two(b) ? 0 : 2 * ulp, unlimited)  // a * rcp(b)
CUHOST_APPROXIMATION(div_full, x / x2, 2 * ulp, unlimited)
CUHOST_APPROXIMATION(rcp, 1 / x, is_power_of_two(y) ? 0 : ulp, unlimited)
CUHOST_APPROXIMATION(sqrt, __builtin_sqrt(x), is_power_of_two(y) ? 0 : y * 0x1p-23, unlimited)
CUHOST_APPROXIMATION(rsqrt, 1 / __builtin_sqrt(x),
                     is_power_of_two(y) ? 0 : __builtin_fmin(y * __builtin_exp2(-22.9), 2 * ulp), unlimited)
CUHOST_APPROXIMATION(ex2, __builtin_exp2(x),
                     CUHOST_OF_TYPE(is_power_of_two(y) ? 0 : 2 * ulp, y * __builtin_exp2(-9.9), y * 0x1p-7), unlimited)
CUHOST_APPROXIMATION(lg2, __builtin_log2(x), x > 1 && is_power_of_two(y) ? 0
                     : a > 0.5 && a < 2 ? 0x1p-22 : y * 0x1p-22, unlimited)
CUHOST_APPROXIMATION(sin, __builtin_sin(x), error_of_angle(a), 1)
CUHOST_APPROXIMATION(cos, __builtin_cos(x), error_of_angle(a), 1)
CUHOST_APPROXIMATION(tanh, __builtin_tanh(x), 1 - y <= ulp / 2 ? 0  // saturated, which kernels rely on
                     : CUHOST_OF_TYPE(y * 0x1p-11, __builtin_exp2(-10.987), 0x1p-8), 1)
// CUDA C++ Programming Guide 13.1, sections 17.1 (of rsqrtf, 2 ulp) and 17.2
CUHOST_APPROXIMATION(fast_exp, __builtin_exp(x), (2 + __builtin_floor(1.173 * a)) * ulp, unlimited)
CUHOST_APPROXIMATION(fast_exp10, __builtin_pow(10.0, x), (2 + __builtin_floor(2.97 * a)) * ulp, unlimited)
CUHOST_APPROXIMATION(fast_log, __builtin_log(x),
                     a >= 0.5 && a <= 2 ? __builtin_exp2(-21.41) : 3 * ulp, unlimited)
CUHOST_APPROXIMATION(fast_log2, __builtin_log2(x), x > 1 && is_power_of_two(y) ? 0  // an lg2.approx
                     : a >= 0.5 && a <= 2 ? 0x1p-22 : 2 * ulp, unlimited)
CUHOST_APPROXIMATION(fast_log10, __builtin_log10(x), a >= 0.5 && a <= 2 ? 0x1p-24 : 3 * ulp, unlimited)
CUHOST_APPROXIMATION(fast_sin, __builtin_sin(x),
                     a <= two_pi / 2 ? __builtin_exp2(-21.41) : error_of_angle(a), 1)
CUHOST_APPROXIMATION(fast_cos, __builtin_cos(x),
                     a <= two_pi / 2 ? __builtin_exp2(-21.19) : error_of_angle(a), 1)
#undef CUHOST_OF_TYPE
#undef CUHOST_APPROXIMATION

// rcp.approx.ftz.f64 and rsqrt.approx.ftz.f64: of the upper half of an operand, the upper half of the result.
inline double upper_half(double v) {
  bool subnormal = __builtin_fabs(v) < 0x1p-1022;
  return subnormal ? __builtin_copysign(0.0, v) : bits<double>(bits<uint64_t>(v) >> 32 << 32);
}
inline double gross_rcp(double x) { return upper_half(1 / upper_half(x)); }
inline double gross_rsqrt(double x) { return upper_half(1 / __builtin_sqrt(upper_half(x))); }

}  // namespace cuhost
