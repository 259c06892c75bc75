// cuda_fp8.h: numbers of 8 bits, pairs and fours of them, and conversions. None has arithmetic.
#pragma once

#include "bfloat16.h"
#include "fp8_codes.h"

namespace cuda_device {

enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };
using __nv_fp8_storage_t = unsigned char;
using __nv_fp8x2_storage_t = unsigned short;
using __nv_fp8x4_storage_t = unsigned int;

inline __nv_fp8_storage_t __nv_cvt_double_to_fp8(double v, __nv_saturation_t saturation,
                                                 __nv_fp8_interpretation_t kind) {
  bool saturated = saturation == __NV_SATFINITE;
  return kind == __NV_E4M3 ? cuhost::cuhost_e4m3::code(v, saturated) : cuhost::cuhost_e5m2::code(v, saturated);
}
// The pair's first number becomes the lower byte.
inline __nv_fp8x2_storage_t __nv_cvt_double2_to_fp8x2(double2 v, __nv_saturation_t saturation,
                                                      __nv_fp8_interpretation_t kind) {
  return (__nv_fp8x2_storage_t)(__nv_cvt_double_to_fp8(v.x, saturation, kind) |
                                __nv_cvt_double_to_fp8(v.y, saturation, kind) << 8);
}
#define CUHOST_FP8_FROM(T, P, name, pair, value, values)                                        \
  inline __nv_fp8_storage_t __nv_cvt_##name##_to_fp8(T v, __nv_saturation_t saturation,         \
                                                     __nv_fp8_interpretation_t kind) {          \
    return __nv_cvt_double_to_fp8(value, saturation, kind);                                     \
  }                                                                                             \
  inline __nv_fp8x2_storage_t __nv_cvt_##pair##_to_fp8x2(P v, __nv_saturation_t saturation,     \
                                                         __nv_fp8_interpretation_t kind) {      \
    return __nv_cvt_double2_to_fp8x2(values, saturation, kind);                                 \
  }
CUHOST_FP8_FROM(float, float2, float, float2, v, (double2{v.x, v.y}))
CUHOST_FP8_FROM(__half_raw, __half2_raw, halfraw, halfraw2, __half(v).wide(),
                (double2{__half2(v).x.wide(), __half2(v).y.wide()}))
CUHOST_FP8_FROM(__nv_bfloat16_raw, __nv_bfloat162_raw, bfloat16raw, bfloat16raw2, __nv_bfloat16(v).wide(),
                (double2{__nv_bfloat162(v).x.wide(), __nv_bfloat162(v).y.wide()}))
#undef CUHOST_FP8_FROM

inline __half_raw __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t v, __nv_fp8_interpretation_t kind) {
  return kind == __NV_E4M3 ? cuhost::cuhost_e4m3::half(v) : cuhost::cuhost_e5m2::half(v);
}
inline __half2_raw __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t v, __nv_fp8_interpretation_t kind) {
  return {__nv_cvt_fp8_to_halfraw((__nv_fp8_storage_t)v, kind).x,
          __nv_cvt_fp8_to_halfraw((__nv_fp8_storage_t)(v >> 8), kind).x};
}

}  // namespace cuda_device

namespace cuhost {

// Conversions to a number saturate.
template <class Code>
struct Fp8 {
  unsigned char __x;
  Fp8() = default;
  template <class T, std::enable_if_t<is_number<T>, int> = 0>
  explicit Fp8(T v) : __x(Code::code((double)v)) {}
  template <int mantissa, int exponent>
  explicit Fp8(Small<mantissa, exponent> v) : __x(Code::code(v.wide())) {}
  template <class T, std::enable_if_t<is_number<T> && !std::is_same_v<T, bool>, int> = 0>
  explicit operator T() const {
    if constexpr (std::is_floating_point_v<T>) return (T)Code::value(__x);
    else return saturated<T>(to_whole(FE_TOWARDZERO, Code::value(__x)));
  }
  template <int mantissa, int exponent>
  explicit operator Small<mantissa, exponent>() const { return Small<mantissa, exponent>(Code::value(__x)); }
  explicit operator bool() const { return __x & 0x7f; }
};

template <class Code>
struct alignas(2) Fp8Pair {
  unsigned short __x;
  Fp8Pair() = default;
  Fp8Pair(double x, double y, int) : __x((unsigned short)(Code::code(x) | Code::code(y) << 8)) {}
  explicit Fp8Pair(cuda_device::float2 v) : Fp8Pair(v.x, v.y, 0) {}
  explicit Fp8Pair(cuda_device::double2 v) : Fp8Pair(v.x, v.y, 0) {}
  template <class S>
  explicit Fp8Pair(Pair<S> v) : Fp8Pair(v.x.wide(), v.y.wide(), 0) {}
  explicit operator cuda_device::float2() const { return {Code::value(__x), Code::value(__x >> 8)}; }
  explicit operator cuda_device::__half2() const { return {Code::half(__x), Code::half(__x >> 8)}; }
};

template <class Code>
struct alignas(4) Fp8Four {
  unsigned __x;
  Fp8Four() = default;
  Fp8Four(Fp8Pair<Code> low, Fp8Pair<Code> high) : __x(low.__x | (unsigned)high.__x << 16) {}
  explicit Fp8Four(cuda_device::float4 v) : Fp8Four({v.x, v.y, 0}, {v.z, v.w, 0}) {}
  explicit Fp8Four(cuda_device::double4 v) : Fp8Four({v.x, v.y, 0}, {v.z, v.w, 0}) {}
  template <class S>
  Fp8Four(Pair<S> low, Pair<S> high) : Fp8Four(Fp8Pair<Code>(low), Fp8Pair<Code>(high)) {}
  explicit operator cuda_device::float4() const {
    return {Code::value(__x), Code::value(__x >> 8), Code::value(__x >> 16), Code::value(__x >> 24)};
  }
};

}  // namespace cuhost

namespace cuda_device {

using __nv_fp8_e4m3 = cuhost::Fp8<cuhost::cuhost_e4m3>;
using __nv_fp8_e5m2 = cuhost::Fp8<cuhost::cuhost_e5m2>;
using __nv_fp8x2_e4m3 = cuhost::Fp8Pair<cuhost::cuhost_e4m3>;
using __nv_fp8x2_e5m2 = cuhost::Fp8Pair<cuhost::cuhost_e5m2>;
using __nv_fp8x4_e4m3 = cuhost::Fp8Four<cuhost::cuhost_e4m3>;
using __nv_fp8x4_e5m2 = cuhost::Fp8Four<cuhost::cuhost_e5m2>;

}  // namespace cuda_device
