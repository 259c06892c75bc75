// Conversions of inline PTX.
#pragma once

#include "fp8_codes.h"
#include "ptx_registers.h"

namespace cuhost {

constexpr int cuhost_mode(char mode) {
  return mode == 'z' ? FE_TOWARDZERO : mode == 'm' ? FE_DOWNWARD : mode == 'p' ? FE_UPWARD : FE_TONEAREST;
}

// Ten bits of fraction are left: `a` rounds ties away from zero, `n` to even.
template <char mode, bool relu>
inline unsigned cuhost_to_tf32(unsigned bits) {
  bool special = (bits & 0x7f800000) == 0x7f800000;
  if (special && bits << 9) return 0x7fffffff;
  if (relu && bits >> 31) return 0;
  unsigned half = mode == 'a' ? 0x1000 : mode == 'n' ? 0xfff + (bits >> 13 & 1) : 0;
  return special ? bits : (bits + half) & 0xffffe000;
}

template <class T>
inline auto cuhost_relu(unsigned long long bits) {
  auto v = T::get(bits);
  if constexpr (is_small<typename T::value>) return T::put(rectified(v));
  else return T::put(v > 0 || v != v ? v : (typename T::value)0);
}

template <class To, class From, char mode, bool saturated>
inline auto cuhost_cvt(unsigned long long bits) {
  using T = typename To::value;
  using F = typename From::value;
  F v = From::get(bits);
  if constexpr (is_small<T>) {
    if constexpr (is_small<F>) return To::put(T::rounded((float)v, cuhost_mode(mode)));
    else return To::put(T::rounded(v, cuhost_mode(mode)));
  } else if constexpr (std::is_integral_v<T> && std::is_integral_v<F>) {
    if constexpr (saturated) {
      using L = std::numeric_limits<T>;
      __int128 wide = v;
      return To::put((T)(wide < L::min() ? L::min() : wide > L::max() ? L::max() : wide));
    } else {
      return To::put((T)v);
    }
  } else if constexpr (std::is_integral_v<T>) {
    if constexpr (is_small<F>) return To::put(cuhost::saturated<T>(to_whole(cuhost_mode(mode), (float)v)));
    else return To::put(cuhost::saturated<T>(to_whole(cuhost_mode(mode), v)));
  } else {
    T result;
    if constexpr (is_small<F>) result = (T)(float)v;
    else if constexpr (mode == 'n') result = (T)v;
    else {
      volatile F given = v;
      result = rounded(cuhost_mode(mode), [&] { volatile T r = (T)given; return (T)r; });
    }
    if constexpr (saturated) result = result > 0 ? result < 1 ? result : (T)1 : (T)0;
    return To::put(result);
  }
}

template <class T, char mode>
inline auto cuhost_whole(unsigned long long bits) {
  return T::put(to_whole(cuhost_mode(mode), T::get(bits)));
}

// The largest number in place of infinity.
template <class T>
inline unsigned cuhost_finite(unsigned bits) {
  constexpr unsigned infinity = T::value::infinity;
  return (bits & 0x7fff) == infinity ? bits - 1 : bits;
}

// The first operand becomes the upper half.
template <class T, char mode, bool relu, bool finite>
inline unsigned cuhost_to_pair(unsigned high, unsigned low) {
  auto half = [](unsigned bits) {
    auto v = T::value::rounded(cuhost_f32::get(bits), cuhost_mode(mode));
    unsigned result = T::put(relu ? rectified(v) : v);
    return finite ? cuhost_finite<T>(result) : result;
  };
  return half(high) << 16 | half(low);
}

template <class Code>
inline unsigned cuhost_to_fp8_pair(unsigned high, unsigned low) {
  return (unsigned)Code::code(cuhost_f32::get(high)) << 8 | Code::code(cuhost_f32::get(low));
}
template <class Code>
inline unsigned cuhost_to_fp8_pair(unsigned pair) {
  return (unsigned)Code::code(cuhost_f16::get(pair >> 16).wide()) << 8 | Code::code(cuhost_f16::get(pair & 0xffff).wide());
}
template <class Code>
inline unsigned cuhost_from_fp8_pair(unsigned pair) {
  return (unsigned)Code::half(pair >> 8 & 0xff).cuhost_bits << 16 | Code::half(pair & 0xff).cuhost_bits;
}

// The first operand becomes the upper number, and the third one what is above both.
template <class T>
inline unsigned cuhost_packed(unsigned high, unsigned low, unsigned above) {
  using L = std::numeric_limits<typename T::value>;
  constexpr int width = 8 * sizeof(typename T::value);
  auto one = [](unsigned bits) {
    int v = (int)bits;
    return (unsigned)(v < L::min() ? L::min() : v > L::max() ? L::max() : v) & ((1u << width) - 1);
  };
  return (unsigned)((unsigned long long)above << (2 * width)) | one(high) << width | one(low);
}

}  // namespace cuhost
