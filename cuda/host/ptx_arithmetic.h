// Arithmetic of inline PTX. What is approximate, and how much, is in approximations.h.
#pragma once

#include "integers.h"
#include "ptx_registers.h"

namespace cuhost {

#define CUHOST_PTX(name, parameters, expression)                                          \
  template <class T>                                                                      \
  inline auto cuhost_ptx_##name parameters {                                              \
    using V = typename T::value;                                                          \
    (void)sizeof(V);                                                                      \
    return expression;                                                                    \
  }
using Bits64 = unsigned long long;
#define CUHOST_PTX_1(name, expression) \
  CUHOST_PTX(name, (Bits64 x), cuhost_apply<T>([](auto a) { return expression; }, x))
#define CUHOST_PTX_2(name, expression) \
  CUHOST_PTX(name, (Bits64 x, Bits64 y), cuhost_apply<T>([](auto a, auto b) { return expression; }, x, y))

template <class V>
inline V cuhost_lesser(V a, V b, bool keep_nan) {
  if constexpr (is_small<V>) return least(a, b, keep_nan);
  else if constexpr (std::is_floating_point_v<V>)
    return keep_nan && (a != a || b != b) ? (V)__builtin_nan("") : __builtin_fmin(a, b);
  else return b < a ? b : a;
}
template <class V>
inline V cuhost_greater(V a, V b, bool keep_nan) {
  if constexpr (is_small<V>) return most(a, b, keep_nan);
  else if constexpr (std::is_floating_point_v<V>)
    return keep_nan && (a != a || b != b) ? (V)__builtin_nan("") : __builtin_fmax(a, b);
  else return a < b ? b : a;
}
template <class V>
inline V cuhost_fused(V a, V b, V c) {
  if constexpr (is_small<V>) return fused(a, b, c);
  else if constexpr (sizeof(V) == 4) return __builtin_fmaf(a, b, c);
  else return __builtin_fma(a, b, c);
}
template <class V>
inline auto cuhost_real(V a) {  // for functions of the host
  if constexpr (is_small<V>) return a.wide();
  else return a;
}

CUHOST_PTX_2(add, a + b)
CUHOST_PTX_2(sub, a - b)
CUHOST_PTX_2(mul, a * b)
CUHOST_PTX_2(mul_lo, a * b)
CUHOST_PTX_2(min, cuhost_lesser(a, b, false))
CUHOST_PTX_2(max, cuhost_greater(a, b, false))
CUHOST_PTX_2(min_nan, cuhost_lesser(a, b, true))
CUHOST_PTX_2(max_nan, cuhost_greater(a, b, true))
CUHOST_PTX_2(div, quotient(a, b))
CUHOST_PTX_2(rem, cuhost::remainder(a, b))
CUHOST_PTX_2(and, a & b)
CUHOST_PTX_2(or, a | b)
CUHOST_PTX_2(xor, a ^ b)
CUHOST_PTX_1(not, ~a)
CUHOST_PTX_1(neg, -a)
CUHOST_PTX_1(abs, (cuhost_real(a) < 0 ? -a : a))
CUHOST_PTX(mad_lo, (Bits64 x, Bits64 y, Bits64 z), T::put((V)(T::get(x) * T::get(y) + T::get(z))))
CUHOST_PTX(fma, (Bits64 x, Bits64 y, Bits64 z),
           cuhost_apply<T>([](auto a, auto b, auto c) { return cuhost_fused(a, b, c); }, x, y, z))
CUHOST_PTX(mad, (Bits64 x, Bits64 y, Bits64 z), cuhost_ptx_fma<T>(x, y, z))
CUHOST_PTX(shl, (Bits64 x, Bits64 y), T::put((V)shift_left(T::get(x), (unsigned)y)))
CUHOST_PTX(shr, (Bits64 x, Bits64 y), T::put((V)shift_right(T::get(x), (unsigned)y)))

// Twice as wide as V, up to 128 bits.
template <class V>
using Wider = std::conditional_t<
    sizeof(V) == 8, std::conditional_t<std::is_signed_v<V>, __int128, unsigned __int128>,
    std::conditional_t<std::is_signed_v<V>, long long, unsigned long long>>;
template <class V>
inline Wider<V> cuhost_product(V a, V b) {
  return (Wider<V>)a * (Wider<V>)b;
}
CUHOST_PTX(mul_wide, (Bits64 x, Bits64 y), (Bits64)cuhost_product(T::get(x), T::get(y)))
CUHOST_PTX(mad_wide, (Bits64 x, Bits64 y, Bits64 z), (Bits64)cuhost_product(T::get(x), T::get(y)) + z)
CUHOST_PTX(mul_hi, (Bits64 x, Bits64 y), T::put((V)(cuhost_product(T::get(x), T::get(y)) >> (8 * sizeof(V)))))
CUHOST_PTX(mad_hi, (Bits64 x, Bits64 y, Bits64 z),
           T::put((V)((V)(cuhost_product(T::get(x), T::get(y)) >> (8 * sizeof(V))) + T::get(z))))

// The carry flag of the thread that runs. Nothing says that it lasts beyond an asm statement, but on cards it
// does as long as the thread adds nothing else.
inline bool cuhost_carry;
template <class T>
inline auto cuhost_sum(typename T::value a, typename T::value b, bool carried, bool sets) {
  using U = cuhost_b<8 * sizeof a>;
  unsigned __int128 sum = (unsigned __int128)(U)a + (U)b + carried;
  if (sets) cuhost_carry = sum >> (8 * sizeof a) & 1;
  return T::put((typename T::value)sum);
}
// The flag is then the borrow: a card adds the complement.
template <class T>
inline auto cuhost_difference(typename T::value a, typename T::value b, bool borrowed, bool sets) {
  using U = cuhost_b<8 * sizeof a>;
  unsigned __int128 subtracted = (unsigned __int128)(U)b + borrowed;
  if (sets) cuhost_carry = (U)a < subtracted;
  return T::put((typename T::value)((U)a - subtracted));
}
CUHOST_PTX(add_cc, (Bits64 x, Bits64 y), cuhost_sum<T>(T::get(x), T::get(y), false, true))
CUHOST_PTX(addc, (Bits64 x, Bits64 y), cuhost_sum<T>(T::get(x), T::get(y), cuhost_carry, false))
CUHOST_PTX(addc_cc, (Bits64 x, Bits64 y), cuhost_sum<T>(T::get(x), T::get(y), cuhost_carry, true))
CUHOST_PTX(sub_cc, (Bits64 x, Bits64 y), cuhost_difference<T>(T::get(x), T::get(y), false, true))
CUHOST_PTX(subc, (Bits64 x, Bits64 y), cuhost_difference<T>(T::get(x), T::get(y), cuhost_carry, false))
CUHOST_PTX(subc_cc, (Bits64 x, Bits64 y), cuhost_difference<T>(T::get(x), T::get(y), cuhost_carry, true))
#define CUHOST_PTX_MAD(part, name, carried, sets)                                         \
  CUHOST_PTX(name, (Bits64 x, Bits64 y, Bits64 z),                                        \
             cuhost_sum<T>((V)cuhost_ptx_mul_##part<T>(x, y), T::get(z), carried, sets))
CUHOST_PTX_MAD(lo, mad_lo_cc, false, true)
CUHOST_PTX_MAD(hi, mad_hi_cc, false, true)
CUHOST_PTX_MAD(lo, madc_lo, cuhost_carry, false)
CUHOST_PTX_MAD(hi, madc_hi, cuhost_carry, false)
CUHOST_PTX_MAD(lo, madc_lo_cc, cuhost_carry, true)
CUHOST_PTX_MAD(hi, madc_hi_cc, cuhost_carry, true)
#undef CUHOST_PTX_MAD

template <class V>
inline long long cuhost_low_24(V v) {
  return std::is_signed_v<V> ? (long long)((int)((unsigned)v << 8) >> 8) : (long long)((unsigned)v & 0xffffff);
}
CUHOST_PTX(mul24_lo, (Bits64 x, Bits64 y), T::put((V)(cuhost_low_24(T::get(x)) * cuhost_low_24(T::get(y)))))
CUHOST_PTX(mul24_hi, (Bits64 x, Bits64 y), T::put((V)(cuhost_low_24(T::get(x)) * cuhost_low_24(T::get(y)) >> 16)))
CUHOST_PTX(mad24_lo, (Bits64 x, Bits64 y, Bits64 z),
           T::put((V)(cuhost_low_24(T::get(x)) * cuhost_low_24(T::get(y)) + T::get(z))))
CUHOST_PTX(sad, (Bits64 x, Bits64 y, Bits64 z),
           T::put((V)(T::get(z) + (T::get(x) < T::get(y) ? T::get(y) - T::get(x) : T::get(x) - T::get(y)))))
CUHOST_PTX_2(copysign, __builtin_copysign(b, a))

#define CUHOST_TESTP(name, expression)                                                    \
  template <class T>                                                                      \
  inline bool cuhost_testp_##name(Bits64 x) {                                             \
    auto a = T::get(x);                                                                   \
    return expression;                                                                    \
  }
CUHOST_TESTP(finite, __builtin_isfinite(a))
CUHOST_TESTP(infinite, __builtin_isinf(a))
CUHOST_TESTP(number, !__builtin_isnan(a))
CUHOST_TESTP(notanumber, __builtin_isnan(a))
CUHOST_TESTP(normal, __builtin_isnormal(a))
CUHOST_TESTP(subnormal, a != 0 && __builtin_isfinite(a) && !__builtin_isnormal(a))
#undef CUHOST_TESTP

CUHOST_PTX_1(rcp, 1 / a)
CUHOST_PTX_1(sqrt, __builtin_sqrt(a))
CUHOST_PTX_1(rsqrt, 1 / __builtin_sqrt(a))
CUHOST_PTX_2(div_approx, approximate_div(a, b))
CUHOST_PTX_2(div_full, approximate_div_full(a, b))
CUHOST_PTX_1(rcp_approx, approximate_rcp(a))
CUHOST_PTX_1(sqrt_approx, approximate_sqrt(a))
CUHOST_PTX_1(rsqrt_approx, approximate_rsqrt(a))
CUHOST_PTX_1(ex2_approx, approximate_ex2<decltype(a)>(cuhost_real(a)))
CUHOST_PTX_1(tanh_approx, approximate_tanh<decltype(a)>(cuhost_real(a)))
CUHOST_PTX_1(lg2_approx, approximate_lg2(a))
CUHOST_PTX_1(sin_approx, approximate_sin(a))
CUHOST_PTX_1(cos_approx, approximate_cos(a))
CUHOST_PTX_1(rcp_approx_ftz, gross_rcp(a))
CUHOST_PTX_1(rsqrt_approx_ftz, gross_rsqrt(a))

CUHOST_PTX(popc, (Bits64 x), (unsigned)__builtin_popcountll(T::get(x)))
CUHOST_PTX(clz, (Bits64 x), (unsigned)(T::get(x) ? __builtin_clzll(T::get(x)) - (64 - 8 * (int)sizeof(V)) : 8 * (int)sizeof(V)))
CUHOST_PTX(prmt, (Bits64 x, Bits64 y, Bits64 z), cuda_device::__byte_perm((unsigned)x, (unsigned)y, (unsigned)z))
template <class T>
inline auto cuhost_ptx_brev(Bits64 x) {
  typename T::value from = T::get(x), result = 0;
  for (unsigned k = 0; k < 8 * sizeof from; ++k) result = (typename T::value)(result << 1 | (from >> k & 1));
  return result;
}
template <class T>
inline unsigned cuhost_ptx_lop3(Bits64 x, Bits64 y, Bits64 z, Bits64 table) {
  unsigned a = (unsigned)x, b = (unsigned)y, c = (unsigned)z, result = 0;
  for (int k = 0; k < 8; ++k)
    if (table >> k & 1) result |= (k & 4 ? a : ~a) & (k & 2 ? b : ~b) & (k & 1 ? c : ~c);
  return result;
}
template <class T>
inline auto cuhost_ptx_bfe(Bits64 x, Bits64 y, Bits64 z) {
  using V = typename T::value;
  constexpr unsigned width = 8 * sizeof(V);
  unsigned place = y & 255, length = z & 255, top = place + length - 1;
  Bits64 from = (Bits64)(std::make_unsigned_t<V>)T::get(x), result = 0;
  bool sign = std::is_signed_v<V> && length && from >> (top < width ? top : width - 1) & 1;
  for (unsigned k = 0; k < width; ++k) {
    bool inside = k < length && place + k < width;
    result |= (Bits64)(inside ? from >> (place + k) & 1 : sign) << k;
  }
  return T::put(T::get(result));
}
template <class T>
inline auto cuhost_ptx_bfi(Bits64 x, Bits64 y, Bits64 z, Bits64 w) {
  constexpr unsigned width = 8 * sizeof(typename T::value);
  Bits64 result = T::get(y);
  unsigned place = z & 255, length = w & 255;
  for (unsigned k = 0; k < length && place + k < width; ++k) {
    result &= ~(1ull << (place + k));
    result |= (x >> k & 1) << (place + k);
  }
  return T::put(T::get(result));
}
inline unsigned cuhost_funnel(Bits64 low, Bits64 high, unsigned count, bool left) {
  Bits64 both = high << 32 | (unsigned)low;
  return (unsigned)(left ? (count < 32 ? both << count >> 32 : low) : (count < 32 ? both >> count : high));
}
CUHOST_PTX(shf_l_wrap, (Bits64 x, Bits64 y, Bits64 z), cuhost_funnel(x, y, z & 31, true))
CUHOST_PTX(shf_r_wrap, (Bits64 x, Bits64 y, Bits64 z), cuhost_funnel(x, y, z & 31, false))
CUHOST_PTX(shf_l_clamp, (Bits64 x, Bits64 y, Bits64 z), cuhost_funnel(x, y, (unsigned)z < 32 ? (unsigned)z : 32, true))
CUHOST_PTX(shf_r_clamp, (Bits64 x, Bits64 y, Bits64 z), cuhost_funnel(x, y, (unsigned)z < 32 ? (unsigned)z : 32, false))
template <class A, class B>
inline unsigned cuhost_ptx_dp4a(Bits64 x, Bits64 y, Bits64 z) {
  using ByteA = std::conditional_t<std::is_signed_v<typename A::value>, signed char, unsigned char>;
  using ByteB = std::conditional_t<std::is_signed_v<typename B::value>, signed char, unsigned char>;
  unsigned sum = (unsigned)z;
  for (int k = 0; k < 32; k += 8) sum += (unsigned)((int)(ByteA)(x >> k) * (int)(ByteB)(y >> k));
  return sum;
}

template <class T>
inline auto cuhost_clamped_bits(Bits64 x) {
  using V = typename T::value;
  return cuhost_apply<T>([](auto a) {
    if constexpr (is_small<decltype(a)>) return clamped(a);
    else return a > 0 ? a < 1 ? a : (V)1 : (V)0;
  }, x);
}
template <class T>
inline auto cuhost_relu_bits(Bits64 x) {
  return cuhost_apply<T>([](auto a) {
    if constexpr (is_small<decltype(a)>) return rectified(a);
    else return a > 0 || a != a ? a : decltype(a)(0);
  }, x);
}

template <class T>
inline bool cuhost_is_nan(typename T::value v) {
  if constexpr (is_small<typename T::value>) return v.is_nan();
  else return v != v;
}
#define CUHOST_SETP(name, with_nan, T1, expression)                                       \
  template <class T>                                                                      \
  inline bool cuhost_setp_##name(Bits64 x, Bits64 y) {                                    \
    auto a = T1::get(x), b = T1::get(y);                                                  \
    if (cuhost_is_nan<T1>(a) || cuhost_is_nan<T1>(b)) return with_nan;                    \
    return expression;                                                                    \
  }
CUHOST_SETP(eq, false, T, a == b)
CUHOST_SETP(ne, false, T, a != b)
CUHOST_SETP(lt, false, T, a < b)
CUHOST_SETP(le, false, T, a <= b)
CUHOST_SETP(gt, false, T, a > b)
CUHOST_SETP(ge, false, T, a >= b)
CUHOST_SETP(lo, false, T, a < b)
CUHOST_SETP(ls, false, T, a <= b)
CUHOST_SETP(hi, false, T, a > b)
CUHOST_SETP(hs, false, T, a >= b)
CUHOST_SETP(equ, true, T, a == b)
CUHOST_SETP(neu, true, T, a != b)
CUHOST_SETP(ltu, true, T, a < b)
CUHOST_SETP(leu, true, T, a <= b)
CUHOST_SETP(gtu, true, T, a > b)
CUHOST_SETP(geu, true, T, a >= b)
CUHOST_SETP(num, false, T, true)
CUHOST_SETP(nan, true, T, false)
#undef CUHOST_SETP
#undef CUHOST_PTX_1
#undef CUHOST_PTX_2
#undef CUHOST_PTX

}  // namespace cuhost
