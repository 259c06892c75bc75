// Loads, stores, copies and barriers of inline PTX.
//
// Loads and stores are inlined as accesses of the text itself: a checked build reports them.
#pragma once

#include "ptx_registers.h"

namespace cuhost {

// Shared memory lies below 4 GiB, so that an address of it fits 32 bits, see shared.cpp.
inline char* cuhost_address(unsigned long long base, unsigned long long offset) {
  return (char*)(base + offset);
}
inline char* cuhost_address(unsigned base, unsigned long long offset) {
  return (char*)(unsigned long long)(base + (unsigned)offset);
}
inline char* cuhost_address(unsigned short, unsigned long long) = delete;

inline bool cuhost_is_in_shared(const void* address) { return cuhost_is_shared(address); }
inline bool cuhost_is_in_local(const void* address) { return cuhost_is_local(address); }
inline bool cuhost_is_in_global(const void* address) {
  return !cuhost_is_shared(address) && !cuhost_is_local(address);
}

template <class T, int count>
struct cuhost_Words {
  using Value = typename T::value;
  typedef Value Vector __attribute__((vector_size(sizeof(Value) * count)));
  Vector all;
  auto at(int k) const { return T::put(all[k]); }
};
template <class T>
struct cuhost_Words<T, 1> {
  using Vector = typename T::value;
  Vector all;
  auto at(int) const { return T::put(all); }
};

template <class T, int count>
CUHOST_EACH_TIME cuhost_Words<T, count> cuhost_load_weak(const char* at) {
  return {*(const typename cuhost_Words<T, count>::Vector*)at};
}
template <class T, int count>
CUHOST_EACH_TIME cuhost_Words<T, count> cuhost_load_nc(const char* at) {
  return {load_constant((const typename cuhost_Words<T, count>::Vector*)at)};
}
template <class T, int count>
CUHOST_EACH_TIME cuhost_Words<T, count> cuhost_load_volatile(const char* at) {
  cuhost_turn_before(at);
  return {*(const volatile typename cuhost_Words<T, count>::Vector*)at};
}
template <class T, int count>
CUHOST_EACH_TIME cuhost_Words<T, count> cuhost_load_relaxed(const char* at) {
  return cuhost_load_volatile<T, count>(at);
}
template <class T, int count>
CUHOST_EACH_TIME cuhost_Words<T, count> cuhost_load_acquire(const char* at) {
  auto result = cuhost_load_volatile<T, count>(at);
  cuda_device::__threadfence();
  return result;
}

template <class T, class... Bits>
CUHOST_EACH_TIME auto cuhost_gathered(Bits... values) {
  using Vector = typename cuhost_Words<T, (int)sizeof...(Bits)>::Vector;
  if constexpr (sizeof...(Bits) == 1) return (Vector)T::get(values...);
  else return Vector{T::get(values)...};
}
template <class T, int count, class... Bits>
CUHOST_EACH_TIME void cuhost_store_weak(char* at, Bits... values) {
  *(typename cuhost_Words<T, count>::Vector*)at = cuhost_gathered<T>(values...);
}
template <class T, int count, class... Bits>
CUHOST_EACH_TIME void cuhost_store_volatile(char* at, Bits... values) {
  cuhost_turn_before(at);
  *(volatile typename cuhost_Words<T, count>::Vector*)at = cuhost_gathered<T>(values...);
}
template <class T, int count, class... Bits>
CUHOST_EACH_TIME void cuhost_store_relaxed(char* at, Bits... values) {
  cuhost_store_volatile<T, count>(at, values...);
}
template <class T, int count, class... Bits>
CUHOST_EACH_TIME void cuhost_store_release(char* at, Bits... values) {
  cuda_device::__threadfence();
  cuhost_store_volatile<T, count>(at, values...);
}

// How many of the bytes are not read.
inline size_t cuhost_left_out(unsigned long long bytes, unsigned read) {
  return read < bytes ? bytes - read : 0;
}
template <int... sizes>
CUHOST_EACH_TIME void cuhost_copy_later_of(void* to, const void* from, size_t bytes, size_t zeros) {
  if (((bytes != sizes) && ...)) cuhost_trap("cp.async with a size that it does not have");
  cuhost_copy_later(to, from, bytes, zeros);
}

inline void cuhost_thread_fence(bool device) {
  if (device) cuda_device::__threadfence();
  else cuda_device::__threadfence_block();
}
inline void cuhost_bar_sync(int line, unsigned long long number, unsigned long long threads = 0) {
  unsigned all = blockDim.x * blockDim.y * blockDim.z;
  if (!number && (!threads || threads == all)) cuhost_barrier(line);
  else cuhost_named_barrier((unsigned)number, threads ? (unsigned)threads : all, true);
}
inline void cuhost_warp_barrier(unsigned mask) { cuda_device::__syncwarp(mask); }

}  // namespace cuhost
