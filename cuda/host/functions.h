// cuda/functional, and cuda/std/bit, which C++17 lacks.
#pragma once

#include <functional>

#include "kernel.h"

namespace cuda {

template <class T = void>
struct maximum {
  template <class U>
  U operator()(const U& a, const U& b) const { return a < b ? b : a; }
};
template <class T = void>
struct minimum {
  template <class U>
  U operator()(const U& a, const U& b) const { return b < a ? b : a; }
};

}  // namespace cuda

namespace std {

template <class To, class From>
inline To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast of types of different size");
  To result;
  __builtin_memcpy(&result, &from, sizeof result);
  return result;
}
template <class T>
constexpr int popcount(T v) { return __builtin_popcountll((make_unsigned_t<T>)v); }
template <class T>
constexpr int countl_zero(T v) {
  return v ? __builtin_clzll((make_unsigned_t<T>)v) - (64 - 8 * (int)sizeof(T)) : 8 * (int)sizeof(T);
}
template <class T>
constexpr int countr_zero(T v) { return v ? __builtin_ctzll((make_unsigned_t<T>)v) : 8 * (int)sizeof(T); }
template <class T>
constexpr int bit_width(T v) { return 8 * (int)sizeof(T) - countl_zero(v); }
template <class T>
constexpr bool has_single_bit(T v) { return v && !(v & (v - 1)); }
template <class T>
constexpr T bit_ceil(T v) { return v <= 1 ? T(1) : T(T(1) << bit_width((T)(v - 1))); }
template <class T>
constexpr T bit_floor(T v) { return v ? T(T(1) << (bit_width(v) - 1)) : T(0); }

}  // namespace std
