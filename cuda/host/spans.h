// cuda/std/span, which C++17 lacks.
#pragma once

#include <array>
#include <cstddef>

namespace std {

inline constexpr size_t dynamic_extent = (size_t)-1;

template <class T, size_t extent = dynamic_extent>
class span {
  T* first;
  size_t count;

 public:
  using element_type = T;
  using value_type = remove_cv_t<T>;
  using iterator = T*;
  constexpr span() : first(nullptr), count(0) {}
  constexpr span(T* first, size_t count) : first(first), count(count) {}
  constexpr span(T* first, T* last) : first(first), count((size_t)(last - first)) {}
  template <size_t length>
  constexpr span(T (&array)[length]) : first(array), count(length) {}
  template <class U, size_t other>
  constexpr span(const span<U, other>& from) : first(from.data()), count(from.size()) {}
  constexpr T& operator[](size_t k) const { return first[k]; }
  constexpr T& front() const { return first[0]; }
  constexpr T& back() const { return first[count - 1]; }
  constexpr T* data() const { return first; }
  constexpr size_t size() const { return count; }
  constexpr size_t size_bytes() const { return count * sizeof(T); }
  constexpr bool empty() const { return !count; }
  constexpr T* begin() const { return first; }
  constexpr T* end() const { return first + count; }
  constexpr span<T> subspan(size_t from, size_t n = dynamic_extent) const {
    return {first + from, n == dynamic_extent ? count - from : n};
  }
};

}  // namespace std
