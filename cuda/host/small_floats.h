// Floating-point numbers of 16 bits, and pairs of them, for half.h and bfloat16.h.
//
// Every operation is computed in double, which has more than twice their bits, and rounded once: the
// result is the correctly rounded one.
#pragma once

#include "rounding.h"
#include "threads.h"

namespace cuhost {

template <int mantissa, int exponent>
struct Small {
  static constexpr int bias = (1 << (exponent - 1)) - 1;
  static constexpr unsigned infinity = ((1u << exponent) - 1) << mantissa;
  static constexpr unsigned canonical_nan = 0x7fff;

  unsigned short cuhost_bits;

  Small() = default;
  template <class T, std::enable_if_t<is_number<T>, int> = 0>
  Small(T v) : cuhost_bits(nearest(v)) {}
  static Small of_bits(unsigned bits) {
    Small result;
    result.cuhost_bits = (unsigned short)bits;
    return result;
  }
  template <class T>
  static Small rounded(T v, int mode) {
    return of_bits(encoded(exact(v), mode));
  }

  double wide() const { return (double)(float)*this; }
  operator float() const {
    unsigned sign = (unsigned)(cuhost_bits & 0x8000) << 16, rest = cuhost_bits & 0x7fff;
    if constexpr (mantissa == 7) return bits<float>((unsigned)cuhost_bits << 16);
    if (rest >= infinity) return bits<float>(sign | 0x7f800000u | (rest - infinity) << (23 - mantissa));
    float scaled = bits<float>(rest << (23 - mantissa)) * bits<float>((254u - bias) << 23);
    return bits<float>(sign | bits<unsigned>(scaled));
  }
  // Narrow integers saturate, unlike those that a float is converted to.
  template <class I, std::enable_if_t<std::is_integral_v<I> && !std::is_same_v<I, bool>, int> = 0>
  explicit operator I() const {
    return to_integer<I>(FE_TOWARDZERO);
  }
  template <class I>
  I to_integer(int mode) const {
    float whole = to_whole(mode, (float)*this);
    if (whole != whole && sizeof(I) < 8) return 0;
    return saturated<I>(whole);
  }
  bool is_nan() const { return (cuhost_bits & 0x7fff) > infinity; }

  friend Small operator+(Small a, Small b) { return a.wide() + b.wide(); }
  friend Small operator-(Small a, Small b) { return a.wide() - b.wide(); }
  friend Small operator*(Small a, Small b) { return a.wide() * b.wide(); }
  friend Small operator/(Small a, Small b) { return a.wide() / b.wide(); }
  friend Small operator+(Small a) { return a; }
  friend Small operator-(Small a) { return of_bits(a.cuhost_bits ^ 0x8000u); }
  friend Small& operator+=(Small& a, Small b) { return a = a + b; }
  friend Small& operator-=(Small& a, Small b) { return a = a - b; }
  friend Small& operator*=(Small& a, Small b) { return a = a * b; }
  friend Small& operator/=(Small& a, Small b) { return a = a / b; }
  friend Small& operator++(Small& a) { return a += Small(1.0f); }
  friend Small& operator--(Small& a) { return a -= Small(1.0f); }
  friend Small operator++(Small& a, int) {
    Small before = a;
    ++a;
    return before;
  }
  friend Small operator--(Small& a, int) {
    Small before = a;
    --a;
    return before;
  }
  friend bool operator==(Small a, Small b) { return (float)a == (float)b; }
  friend bool operator!=(Small a, Small b) { return (float)a != (float)b; }
  friend bool operator<(Small a, Small b) { return (float)a < (float)b; }
  friend bool operator<=(Small a, Small b) { return (float)a <= (float)b; }
  friend bool operator>(Small a, Small b) { return (float)a > (float)b; }
  friend bool operator>=(Small a, Small b) { return (float)a >= (float)b; }

  // A double that rounds as the value does: the last bit of what a double cannot hold is kept.
  template <class T>
  static double exact(T v) {
    if constexpr (std::is_floating_point_v<T> || sizeof(T) < 8) {
      return (double)v;
    } else {
      bool negative = v < 0;
      unsigned long long size = negative ? 0 - (unsigned long long)v : (unsigned long long)v;
      if (size >> 53) size = (size >> 11 << 11) | (size & 2047 ? 2048 : 0);
      return negative ? -(double)size : (double)size;
    }
  }
  template <class T>
  static unsigned short nearest(T v) {
    return encoded(exact(v), FE_TONEAREST);
  }
  static unsigned short encoded(double v, int mode) {
    unsigned long long all = bits<unsigned long long>(v), size = all << 1 >> 1;
    unsigned sign = (unsigned)(all >> 63) << 15;
    int power = (int)(size >> 52) - 1023;
    if (power == 1024) return (unsigned short)(v != v ? canonical_nan : sign | infinity);
    bool away = mode == (sign ? FE_DOWNWARD : FE_UPWARD);
    constexpr int least = 1 - bias;
    if (power < least - mantissa - 2) return (unsigned short)(sign | (size && away ? 1 : 0));
    unsigned long long whole = (size << 12 >> 12) | 1ull << 52;
    int drop = 52 - mantissa + (power < least ? least - power : 0);
    unsigned long long kept = whole >> drop, rest = whole - (kept << drop), half = 1ull << (drop - 1);
    bool up = mode == FE_TONEAREST ? rest > half || (rest == half && kept & 1) : rest && away;
    unsigned result = (unsigned)kept + up;
    if (power >= least) result += (unsigned)(power + bias - 1) << mantissa;
    if (power > bias || result >= infinity)
      result = mode == FE_TONEAREST || away ? infinity : infinity - 1;
    return (unsigned short)(sign | result);
  }
};

template <class S>
struct alignas(4) Pair {
  S x, y;
  Pair() = default;
  Pair(S x, S y) : x(x), y(y) {}
  friend Pair operator+(Pair a, Pair b) { return {a.x + b.x, a.y + b.y}; }
  friend Pair operator-(Pair a, Pair b) { return {a.x - b.x, a.y - b.y}; }
  friend Pair operator*(Pair a, Pair b) { return {a.x * b.x, a.y * b.y}; }
  friend Pair operator/(Pair a, Pair b) { return {a.x / b.x, a.y / b.y}; }
  friend Pair operator-(Pair a) { return {-a.x, -a.y}; }
  friend Pair operator+(Pair a) { return a; }
  friend Pair& operator+=(Pair& a, Pair b) { return a = a + b; }
  friend Pair& operator-=(Pair& a, Pair b) { return a = a - b; }
  friend Pair& operator*=(Pair& a, Pair b) { return a = a * b; }
  friend Pair& operator/=(Pair& a, Pair b) { return a = a / b; }
  friend bool operator==(Pair a, Pair b) { return a.x == b.x && a.y == b.y; }
  friend bool operator!=(Pair a, Pair b) { return a.x != b.x && a.y != b.y; }
  friend bool operator<(Pair a, Pair b) { return a.x < b.x && a.y < b.y; }
  friend bool operator<=(Pair a, Pair b) { return a.x <= b.x && a.y <= b.y; }
  friend bool operator>(Pair a, Pair b) { return a.x > b.x && a.y > b.y; }
  friend bool operator>=(Pair a, Pair b) { return a.x >= b.x && a.y >= b.y; }
};

// The product is exact in double, but the sum may not be: what is lost then decides a tie, for which
// the sum is made odd (Boldo and Melquiond, "Emulation of FMA and Correctly Rounded Sums", 2008).
template <class S>
inline S fused(S a, S b, S c) {
  double product = a.wide() * b.wide(), added = c.wide(), sum = product + added;
  double part = sum - product, lost = (product - (sum - part)) + (added - part);
  unsigned long long odd = bits<unsigned long long>(sum);
  if (lost == lost && lost != 0 && !(odd & 1)) odd += (lost > 0) == (sum > 0) ? 1 : -1;
  return S(bits<double>(odd));
}
template <class S>
inline S clamped(S v) {  // to 0 .. 1; NaN becomes 0
  return v > S(0.0f) ? v < S(1.0f) ? v : S(1.0f) : S(0.0f);
}
template <class S>
inline S rectified(S v) {
  return v.is_nan() ? S::of_bits(S::canonical_nan) : v > S(0.0f) ? v : S(0.0f);
}
// A zero counts as larger than a negative zero.
template <class S>
inline S least(S a, S b, bool keep_nan) {
  if (a.is_nan() || b.is_nan())
    return keep_nan || (a.is_nan() && b.is_nan()) ? S::of_bits(S::canonical_nan) : a.is_nan() ? b : a;
  return a < b || (a == b && a.cuhost_bits & 0x8000) ? a : b;
}
template <class S>
inline S most(S a, S b, bool keep_nan) {
  if (a.is_nan() || b.is_nan())
    return keep_nan || (a.is_nan() && b.is_nan()) ? S::of_bits(S::canonical_nan) : a.is_nan() ? b : a;
  return a < b || (a == b && a.cuhost_bits & 0x8000) ? b : a;
}

}  // namespace cuhost

// What cuda_fp16.h and cuda_bf16.h define under the same names, for S and pairs P of it.
#define CUHOST_SMALL_BINARY(S, P, name, pair_name, op)                                   \
  inline S name(S a, S b) { return a op b; }                                             \
  inline S name##_rn(S a, S b) { return a op b; }                                        \
  inline S name##_sat(S a, S b) { return cuhost::clamped(a op b); }                      \
  inline P pair_name(P a, P b) { return a op b; }                                        \
  inline P pair_name##_rn(P a, P b) { return a op b; }                                   \
  inline P pair_name##_sat(P a, P b) {                                                   \
    return {cuhost::clamped(a.x op b.x), cuhost::clamped(a.y op b.y)};                   \
  }
// Ordered comparisons are false with a NaN, unordered ones true.
#define CUHOST_SMALL_COMPARISON(S, P, word, op)                                          \
  inline bool __h##word(S a, S b) { return (float)a op (float)b && !a.is_nan() && !b.is_nan(); } \
  inline bool __h##word##u(S a, S b) { return (float)a op (float)b || a.is_nan() || b.is_nan(); } \
  inline P __h##word##2(P a, P b) { return {S((float)__h##word(a.x, b.x)), S((float)__h##word(a.y, b.y))}; } \
  inline P __h##word##u2(P a, P b) {                                                     \
    return {S((float)__h##word##u(a.x, b.x)), S((float)__h##word##u(a.y, b.y))};         \
  }                                                                                      \
  inline bool __hb##word##2(P a, P b) { return __h##word(a.x, b.x) && __h##word(a.y, b.y); } \
  inline bool __hb##word##u2(P a, P b) { return __h##word##u(a.x, b.x) && __h##word##u(a.y, b.y); } \
  inline unsigned __h##word##2_mask(P a, P b) {                                          \
    return (__h##word(a.x, b.x) ? 0xffffu : 0) | (__h##word(a.y, b.y) ? 0xffff0000u : 0); \
  }
#define CUHOST_SMALL_FUNCTION(S, P, name, expression)                                    \
  inline S h##name(S v) {                                                                \
    double x = v.wide();                                                                 \
    return S(expression);                                                                \
  }                                                                                      \
  inline P h2##name(P v) { return {h##name(v.x), h##name(v.y)}; }
#define CUHOST_SMALL_INTEGER(S, prefix, name, I)                                         \
  inline I __##prefix##2##name##_rn(S v) { return v.to_integer<I>(FE_TONEAREST); }       \
  inline I __##prefix##2##name##_rz(S v) { return v.to_integer<I>(FE_TOWARDZERO); }      \
  inline I __##prefix##2##name##_rd(S v) { return v.to_integer<I>(FE_DOWNWARD); }        \
  inline I __##prefix##2##name##_ru(S v) { return v.to_integer<I>(FE_UPWARD); }          \
  inline S __##name##2##prefix##_rn(I v) { return S::rounded(v, FE_TONEAREST); }         \
  inline S __##name##2##prefix##_rz(I v) { return S::rounded(v, FE_TOWARDZERO); }        \
  inline S __##name##2##prefix##_rd(I v) { return S::rounded(v, FE_DOWNWARD); }          \
  inline S __##name##2##prefix##_ru(I v) { return S::rounded(v, FE_UPWARD); }
// `one` is "half" or "bfloat16", `two` is "half2" or "bfloat162".
#define CUHOST_SMALL_FLOATS(S, P, one, two)                                              \
  CUHOST_SMALL_BINARY(S, P, __hadd, __hadd2, +)                                          \
  CUHOST_SMALL_BINARY(S, P, __hsub, __hsub2, -)                                          \
  CUHOST_SMALL_BINARY(S, P, __hmul, __hmul2, *)                                          \
  CUHOST_SMALL_BINARY(S, P, __hdiv, __h2div, /)                                          \
  CUHOST_SMALL_COMPARISON(S, P, eq, ==)                                                  \
  CUHOST_SMALL_COMPARISON(S, P, ne, !=)                                                  \
  CUHOST_SMALL_COMPARISON(S, P, lt, <)                                                   \
  CUHOST_SMALL_COMPARISON(S, P, le, <=)                                                  \
  CUHOST_SMALL_COMPARISON(S, P, gt, >)                                                   \
  CUHOST_SMALL_COMPARISON(S, P, ge, >=)                                                  \
  CUHOST_SMALL_FUNCTION(S, P, sqrt, __builtin_sqrt(x))                                   \
  CUHOST_SMALL_FUNCTION(S, P, rsqrt, 1 / __builtin_sqrt(x))                              \
  CUHOST_SMALL_FUNCTION(S, P, rcp, 1 / x)                                                \
  CUHOST_SMALL_FUNCTION(S, P, exp, __builtin_exp(x))                                     \
  CUHOST_SMALL_FUNCTION(S, P, exp2, __builtin_exp2(x))                                   \
  CUHOST_SMALL_FUNCTION(S, P, exp10, __builtin_pow(10.0, x))                             \
  CUHOST_SMALL_FUNCTION(S, P, log, __builtin_log(x))                                     \
  CUHOST_SMALL_FUNCTION(S, P, log2, __builtin_log2(x))                                   \
  CUHOST_SMALL_FUNCTION(S, P, log10, __builtin_log10(x))                                 \
  CUHOST_SMALL_FUNCTION(S, P, sin, __builtin_sin(x))                                     \
  CUHOST_SMALL_FUNCTION(S, P, cos, __builtin_cos(x))                                     \
  CUHOST_SMALL_FUNCTION(S, P, tanh, __builtin_tanh(x))                                   \
  CUHOST_SMALL_FUNCTION(S, P, tanh_approx, cuhost::approximate_tanh<S>(x))               \
  CUHOST_SMALL_FUNCTION(S, P, ceil, __builtin_ceil(x))                                   \
  CUHOST_SMALL_FUNCTION(S, P, floor, __builtin_floor(x))                                 \
  CUHOST_SMALL_FUNCTION(S, P, trunc, __builtin_trunc(x))                                 \
  CUHOST_SMALL_FUNCTION(S, P, rint, __builtin_rint(x))                                   \
  inline S __hfma(S a, S b, S c) { return cuhost::fused(a, b, c); }                      \
  inline S __hfma_sat(S a, S b, S c) { return cuhost::clamped(__hfma(a, b, c)); }        \
  inline S __hfma_relu(S a, S b, S c) { return cuhost::rectified(__hfma(a, b, c)); }     \
  inline P __hfma2(P a, P b, P c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; } \
  inline P __hfma2_sat(P a, P b, P c) {                                                  \
    return {__hfma_sat(a.x, b.x, c.x), __hfma_sat(a.y, b.y, c.y)};                       \
  }                                                                                      \
  inline P __hfma2_relu(P a, P b, P c) {                                                 \
    return {__hfma_relu(a.x, b.x, c.x), __hfma_relu(a.y, b.y, c.y)};                     \
  }                                                                                      \
  inline S __hmax(S a, S b) { return cuhost::most(a, b, false); }                        \
  inline S __hmin(S a, S b) { return cuhost::least(a, b, false); }                       \
  inline S __hmax_nan(S a, S b) { return cuhost::most(a, b, true); }                     \
  inline S __hmin_nan(S a, S b) { return cuhost::least(a, b, true); }                    \
  inline P __hmax2(P a, P b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }            \
  inline P __hmin2(P a, P b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }            \
  inline P __hmax2_nan(P a, P b) { return {__hmax_nan(a.x, b.x), __hmax_nan(a.y, b.y)}; } \
  inline P __hmin2_nan(P a, P b) { return {__hmin_nan(a.x, b.x), __hmin_nan(a.y, b.y)}; } \
  inline S __hneg(S v) { return -v; }                                                    \
  inline P __hneg2(P v) { return -v; }                                                   \
  inline S __habs(S v) { return S::of_bits(v.cuhost_bits & 0x7fffu); }                   \
  inline P __habs2(P v) { return {__habs(v.x), __habs(v.y)}; }                           \
  inline bool __hisnan(S v) { return v.is_nan(); }                                       \
  inline P __hisnan2(P v) { return {S((float)v.x.is_nan()), S((float)v.y.is_nan())}; }   \
  inline int __hisinf(S v) {                                                             \
    return (v.cuhost_bits & 0x7fffu) != S::infinity ? 0 : v.cuhost_bits & 0x8000 ? -1 : 1; \
  }                                                                                      \
  inline float __##one##2float(S v) { return v; }                                        \
  inline S __float2##one(float v) { return S(v); }                                       \
  inline S __float2##one##_rn(float v) { return S(v); }                                  \
  inline S __float2##one##_rz(float v) { return S::rounded(v, FE_TOWARDZERO); }          \
  inline S __float2##one##_rd(float v) { return S::rounded(v, FE_DOWNWARD); }            \
  inline S __float2##one##_ru(float v) { return S::rounded(v, FE_UPWARD); }              \
  inline S __double2##one(double v) { return S(v); }                                     \
  inline P __float2##two##_rn(float v) { return {S(v), S(v)}; }                          \
  inline P __floats2##two##_rn(float a, float b) { return {S(a), S(b)}; }                \
  inline P __float22##two##_rn(float2 v) { return {S(v.x), S(v.y)}; }                    \
  inline float2 __##two##2float2(P v) { return {v.x, v.y}; }                             \
  inline float __low2float(P v) { return v.x; }                                          \
  inline float __high2float(P v) { return v.y; }                                         \
  inline S __low2##one(P v) { return v.x; }                                              \
  inline S __high2##one(P v) { return v.y; }                                             \
  inline P __low2##two(P v) { return {v.x, v.x}; }                                       \
  inline P __high2##two(P v) { return {v.y, v.y}; }                                      \
  inline P __lows2##two(P a, P b) { return {a.x, b.x}; }                                 \
  inline P __highs2##two(P a, P b) { return {a.y, b.y}; }                                \
  inline P __halves2##two(S a, S b) { return {a, b}; }                                   \
  inline P __##one##2##two(S v) { return {v, v}; }                                       \
  inline P __lowhigh2highlow(P v) { return {v.y, v.x}; }                                 \
  inline P make_##two(S a, S b) { return {a, b}; }                                       \
  inline short __##one##_as_short(S v) { return (short)v.cuhost_bits; }                  \
  inline unsigned short __##one##_as_ushort(S v) { return v.cuhost_bits; }               \
  inline S __short_as_##one(short v) { return S::of_bits((unsigned short)v); }           \
  inline S __ushort_as_##one(unsigned short v) { return S::of_bits(v); }                 \
  CUHOST_SMALL_INTEGER(S, one, int, int)                                                 \
  CUHOST_SMALL_INTEGER(S, one, uint, unsigned)                                           \
  CUHOST_SMALL_INTEGER(S, one, short, short)                                             \
  CUHOST_SMALL_INTEGER(S, one, ushort, unsigned short)                                   \
  CUHOST_SMALL_INTEGER(S, one, ll, long long)                                            \
  CUHOST_SMALL_INTEGER(S, one, ull, unsigned long long)                                  \
  inline S atomicAdd(S* address, S v) {                                                  \
    return cuhost::atomic(cuhost::adds, address, [&](S old) { return old + v; });        \
  }                                                                                      \
  inline P atomicAdd(P* address, P v) {                                                  \
    return cuhost::atomic(cuhost::adds, address, [&](P old) { return old + v; });        \
  }
// Types that hold the bits.
#define CUHOST_SMALL_RAW(S, P, one, two)                                                 \
  struct one {                                                                           \
    unsigned short x;                                                                    \
    one() = default;                                                                     \
    constexpr one(unsigned short bits) : x(bits) {}                                      \
    one(S v) : x(v.cuhost_bits) {}                                                       \
    operator S() const { return S::of_bits(x); }                                         \
  };                                                                                     \
  struct alignas(4) two {                                                                \
    unsigned short x, y;                                                                 \
    two() = default;                                                                     \
    constexpr two(unsigned short x, unsigned short y) : x(x), y(y) {}                    \
    two(P v) : x(v.x.cuhost_bits), y(v.y.cuhost_bits) {}                                 \
    operator P() const { return {S::of_bits(x), S::of_bits(y)}; }                        \
  };
