// Registers of inline PTX: bits, as which the translator passes on all operands, and their types.
#pragma once

#include "small_floats.h"

namespace cuhost {

template <int bits>
struct cuhost_Unsigned;
template <>
struct cuhost_Unsigned<1> { using type = bool; };
template <>
struct cuhost_Unsigned<8> { using type = unsigned char; };
template <>
struct cuhost_Unsigned<16> { using type = unsigned short; };
template <>
struct cuhost_Unsigned<32> { using type = unsigned; };
template <>
struct cuhost_Unsigned<64> { using type = unsigned long long; };
template <int bits>
using cuhost_b = typename cuhost_Unsigned<bits>::type;

constexpr bool cuhost_same(const char* one, const char* other) {
  while (*one && *one == *other) ++one, ++other;
  return *one == *other;
}

// The destination _
struct cuhost_Sink {
  template <class T>
  void operator=(const T&) const {}
};

// What an asm statement's operand has in its register, and back.
template <class Register, class T>
inline Register cuhost_operand(T value) {
  static_assert(sizeof(T) == sizeof(Register),
                "the type of an asm operand has not the size that its constraint says");
  if constexpr (std::is_integral_v<T> || std::is_pointer_v<T>) {
    return (Register)value;
  } else {
    Register result;
    __builtin_memcpy(&result, &value, sizeof result);
    return result;
  }
}
template <class T, class Register>
inline void cuhost_set(T& target, Register bits) {
  static_assert(sizeof(T) == sizeof(Register),
                "the type of an asm operand has not the size that its constraint says");
  using Value = std::remove_volatile_t<T>;
  if constexpr (std::is_integral_v<T> || std::is_pointer_v<T>) {
    target = (Value)bits;
  } else {
    Value result;
    __builtin_memcpy(&result, &bits, sizeof result);
    target = result;
  }
}

// A type T of PTX: values of T::value, got from bits and put into them.
template <class T>
struct cuhost_Plain {
  using value = T;
  using bits = cuhost_b<8 * sizeof(T)>;
  static T get(unsigned long long given) {
    bits narrow = (bits)given;
    T result;
    __builtin_memcpy(&result, &narrow, sizeof result);
    return result;
  }
  // Integers as themselves, so that a wider register has their sign.
  static auto put(T given) {
    if constexpr (std::is_integral_v<T>) {
      return given;
    } else {
      bits result;
      __builtin_memcpy(&result, &given, sizeof result);
      return result;
    }
  }
};
using cuhost_b8 = cuhost_Plain<unsigned char>;
using cuhost_b16 = cuhost_Plain<unsigned short>;
using cuhost_b32 = cuhost_Plain<unsigned>;
using cuhost_b64 = cuhost_Plain<unsigned long long>;
using cuhost_u8 = cuhost_b8;
using cuhost_u16 = cuhost_b16;
using cuhost_u32 = cuhost_b32;
using cuhost_u64 = cuhost_b64;
using cuhost_s8 = cuhost_Plain<signed char>;
using cuhost_s16 = cuhost_Plain<short>;
using cuhost_s32 = cuhost_Plain<int>;
using cuhost_s64 = cuhost_Plain<long long>;
using cuhost_f32 = cuhost_Plain<float>;
using cuhost_f64 = cuhost_Plain<double>;
using cuhost_f16 = cuhost_Plain<Small<10, 5>>;
using cuhost_bf16 = cuhost_Plain<Small<7, 8>>;
using cuhost_f16x2 = cuhost_Plain<Pair<Small<10, 5>>>;
using cuhost_bf16x2 = cuhost_Plain<Pair<Small<7, 8>>>;

template <class T>
constexpr bool is_pair = false;
template <class S>
constexpr bool is_pair<Pair<S>> = true;

// f(v...) of values that got from bits; of pairs, for each half.
template <class T, class F, class... Bits>
inline auto cuhost_apply(F&& f, Bits... given) {
  using V = typename T::value;
  if constexpr (is_pair<V>) {
    return T::put(V(f(T::get(given).x...), f(T::get(given).y...)));
  } else {
    return T::put((V)f(T::get(given)...));
  }
}

inline unsigned long long cuhost_piece(unsigned long long bits, int width, int number) {
  return (bits & ((width < 64 ? 1ull << width : 0) - 1)) << (width * number & 63);
}

// A subnormal number becomes 0, as does each of a pair.
template <class T>
inline auto cuhost_flushed(unsigned long long bits) {
  return cuhost_apply<T>([](auto a) {
    using V = decltype(a);
    if constexpr (is_small<V>) return V::of_bits(a.cuhost_bits & V::infinity ? a.cuhost_bits : a.cuhost_bits & 0x8000);
    else return __builtin_fabs((double)a) < (double)std::numeric_limits<V>::min() ? (V)__builtin_copysign(0, a) : a;
  }, bits);
}

template <char dimension>
inline unsigned cuhost_pick(const Index& of) {
  return dimension == 'x' ? of.x : dimension == 'y' ? of.y : of.z;
}
template <char dimension>
inline unsigned cuhost_tid() {
  return cuhost_pick<dimension>(threadIdx);
}
template <char dimension>
inline unsigned cuhost_ntid() {
  return cuhost_pick<dimension>(blockDim);
}
template <char dimension>
inline unsigned cuhost_ctaid() {
  return cuhost_pick<dimension>(blockIdx);
}
template <char dimension>
inline unsigned cuhost_nctaid() {
  return cuhost_pick<dimension>(gridDim);
}
// Of a block in its cluster, and of clusters in the grid.
template <char dimension>
inline unsigned cuhost_cluster_nctaid() {
  return cuhost_pick<dimension>(cuhost_where.cluster_dim);
}
template <char dimension>
inline unsigned cuhost_cluster_ctaid() {
  return cuhost_ctaid<dimension>() % cuhost_cluster_nctaid<dimension>();
}
template <char dimension>
inline unsigned cuhost_clusterid() {
  return cuhost_ctaid<dimension>() / cuhost_cluster_nctaid<dimension>();
}
template <char dimension>
inline unsigned cuhost_nclusterid() {
  return cuhost_nctaid<dimension>() / cuhost_cluster_nctaid<dimension>();
}
inline unsigned cuhost_cluster_nctarank() {
  return cuhost_cluster_nctaid<'x'>() * cuhost_cluster_nctaid<'y'>() * cuhost_cluster_nctaid<'z'>();
}
inline unsigned cuhost_cluster_ctarank() {
  return cuhost_cluster_ctaid<'x'>() +
         cuhost_cluster_nctaid<'x'>() *
             (cuhost_cluster_ctaid<'y'>() + cuhost_cluster_nctaid<'y'>() * cuhost_cluster_ctaid<'z'>());
}
inline unsigned cuhost_lanemask_eq() { return 1u << cuhost_lane(); }
inline unsigned cuhost_lanemask_lt() { return (1u << cuhost_lane()) - 1; }
inline unsigned cuhost_lanemask_le() { return 2u * (1u << cuhost_lane()) - 1; }
inline unsigned cuhost_lanemask_gt() { return ~cuhost_lanemask_le(); }
inline unsigned cuhost_lanemask_ge() { return ~cuhost_lanemask_lt(); }

}  // namespace cuhost
