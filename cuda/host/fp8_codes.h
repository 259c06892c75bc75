// Floating-point numbers of 8 bits: e4m3 has no infinity and one NaN of each sign, e5m2 is the upper half
// of half precision.
#pragma once

#include "small_floats.h"

namespace cuhost {

template <int mantissa_bits>
struct Fp8Code {
  static constexpr int mantissa = mantissa_bits;
  static constexpr bool is_e4m3 = mantissa == 3;
  static constexpr int bias = is_e4m3 ? 7 : 15;
  static constexpr unsigned nan = 0x7f, most = is_e4m3 ? 0x7e : 0x7b, overflow = is_e4m3 ? nan : 0x7c;

  static Small<10, 5> half(unsigned code) {
    if (!is_e4m3) return Small<10, 5>::of_bits((code & 0xff) << 8);
    if ((code & 0x7f) == nan) return Small<10, 5>::of_bits(0x7fff);
    unsigned bits = (code & 0x80) << 8 | (code & 0x7f) << 7;  // 2^8 times too small
    return Small<10, 5>((float)Small<10, 5>::of_bits(bits) * 256.0f);
  }
  static float value(unsigned code) { return half(code); }

  // The nearest number, of two the even one. Beyond the largest one: that one, or `overflow`.
  static unsigned char code(double v, bool saturated = true) {
    if (v != v) return nan;
    unsigned sign = __builtin_signbit(v) ? 0x80 : 0;
    double size = __builtin_fabs(v);
    unsigned beyond = saturated ? most : overflow;
    if (size > 65536.0) return (unsigned char)(sign | beyond);
    int power = size < bits<double>((unsigned long long)(1024 - bias) << 52) ? 1 - bias : (int)(bits<unsigned long long>(size) >> 52) - 1023;
    double units = size * bits<double>((unsigned long long)(1023 + mantissa - power) << 52);
    unsigned whole = (unsigned)units;  // up to 2^(mantissa + 1)
    double rest = units - whole;
    whole += rest > 0.5 || (rest == 0.5 && whole & 1);
    // A number below 2^mantissa is subnormal, and one that is rounded up to the next power carries on.
    unsigned result = ((unsigned)(power + bias - 1) << mantissa) + whole;
    return (unsigned char)(sign | (result > most ? beyond : result));
  }
};

using cuhost_e4m3 = Fp8Code<3>;
using cuhost_e5m2 = Fp8Code<2>;

}  // namespace cuhost
