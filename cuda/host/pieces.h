// How the threads of a group share a copy, and what cuda/barrier and cuda/pipeline say of its size.
#pragma once

#include <cstddef>
#include <type_traits>

namespace cuhost {

struct OneThread {
  static constexpr size_t size() { return 1; }
  static constexpr size_t thread_rank() { return 0; }
};

template <class Size, class = void>
constexpr size_t alignment_of_size = 1;
template <class Size>
constexpr size_t alignment_of_size<Size, std::void_t<decltype(Size::align)>> = Size::align;

template <class T>
constexpr size_t alignment_of_element = alignof(T);
template <>
inline constexpr size_t alignment_of_element<void> = 1;

// Calls copy(to, from, bytes, alignment) for each piece that is this thread's.
template <class Group, class T, class Size, class F>
inline void share_copy(const Group& group, T* to, const T* from, const Size& size, F&& copy) {
  static_assert(std::is_void_v<T> || std::is_trivially_copyable_v<T>,
                "memcpy_async copies trivially copyable types");
  constexpr size_t of_size = alignment_of_size<Size>, of_element = alignment_of_element<T>;
  constexpr size_t piece = of_size < 16 ? 16 : of_size;
  size_t bytes = size, step = piece * (size_t)group.size();
  for (size_t at = piece * (size_t)group.thread_rank(); at < bytes; at += step)
    copy((char*)to + at, (const char*)from + at, bytes - at < piece ? bytes - at : piece,
         of_size < of_element ? of_element : of_size);
}

}  // namespace cuhost
