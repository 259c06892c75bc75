// The values of elements that registers hold.
#pragma once

#include <cstring>

#include "matrices.h"

namespace cuhost {

template <class T>
inline T as(uint32_t bits) {
  T result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

inline double half_value(uint32_t bits) {
  uint32_t sign = (bits & 0x8000) << 16, rest = bits & 0x7fff;
  if (rest >= 0x7c00) return as<float>(sign | 0x7f800000 | (rest - 0x7c00) << 13);
  float scaled = as<float>(rest << 13) * 0x1p112f;
  return sign ? -(double)scaled : scaled;
}

// The only special value of e4m3 is NaN.
inline double e4m3_value(uint32_t bits) {
  uint32_t sign = (bits & 0x80) << 24, rest = bits & 0x7f;
  if (rest == 0x7f) return as<float>(0x7fffffff);
  float scaled = as<float>(rest << 20) * 0x1p120f;
  return sign ? -(double)scaled : scaled;
}

// Element k of words that hold elements of a kind.
inline double element(const uint32_t* words, int k, cuhost_Kind kind) {
  switch (kind) {
    case cuhost_matrix_f64: {
      double value;
      std::memcpy(&value, (const char*)words + 8 * k, 8);
      return value;
    }
    case cuhost_matrix_f16: return half_value(words[k / 2] >> (k % 2 * 16) & 0xffff);
    case cuhost_matrix_bf16: return as<float>(words[k / 2] >> (k % 2 * 16) << 16);
    case cuhost_matrix_tf32: return as<float>(words[k] & 0xffffe000);
    case cuhost_matrix_e4m3: return e4m3_value(words[k / 4] >> (k % 4 * 8) & 0xff);
    case cuhost_matrix_e5m2: return half_value((words[k / 4] >> (k % 4 * 8) & 0xff) << 8);
    case cuhost_matrix_s8: return (int8_t)(words[k / 4] >> (k % 4 * 8));
    case cuhost_matrix_u8: return (uint8_t)(words[k / 4] >> (k % 4 * 8));
    case cuhost_matrix_s32: return (int32_t)words[k];
    default: return as<float>(words[k]);
  }
}

}  // namespace cuhost
