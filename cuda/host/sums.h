// Sums of a thread that are computed together, for texts that sums.py has rewritten.
#pragma once

#include <cstdint>
#include <type_traits>

namespace cuhost {

typedef float cuhost_Sums __attribute__((vector_size(16)));

// Elements of memory as a vector. Any other type than float would be rounded differently.
template <class T>
inline uint64_t cuhost_two(const T& first) {
  static_assert(std::is_same_v<T, float>);
  uint64_t result;
  __builtin_memcpy(&result, &first, sizeof result);
  return result;
}
template <class T>
inline cuhost_Sums cuhost_pairs(const T& first, const T& second) {
  typedef uint64_t Pairs __attribute__((vector_size(16)));
  return (cuhost_Sums)Pairs{cuhost_two(first), cuhost_two(second)};
}
template <class T>
inline cuhost_Sums cuhost_four(const T& first) {
  static_assert(std::is_same_v<T, float>);
  cuhost_Sums result;
  __builtin_memcpy(&result, &first, sizeof result);
  return result;
}
template <class T>
inline cuhost_Sums cuhost_each(const T& first, const T& second, const T& third, const T& fourth) {
  static_assert(std::is_same_v<T, float>);
  return cuhost_Sums{first, second, third, fourth};
}
template <class T>
inline cuhost_Sums cuhost_all(const T& factor) {
  static_assert(std::is_same_v<T, float>);
  return cuhost_Sums{factor, factor, factor, factor};
}

}  // namespace cuhost
