// cuda/atomic: atomics with an order of memory.
//
// Ordered ones have a fence before or after, as the card's instructions do.
#pragma once

#include "scopes.h"

namespace cuda {

using ::std::memory_order;
using ::std::memory_order_acq_rel;
using ::std::memory_order_acquire;
using ::std::memory_order_consume;
using ::std::memory_order_relaxed;
using ::std::memory_order_release;
using ::std::memory_order_seq_cst;

inline void atomic_thread_fence(memory_order order, thread_scope scope = thread_scope_system) {
  if (order == memory_order_relaxed || scope == thread_scope_thread) return;
  if (scope == thread_scope_block) ::cuda_device::__threadfence_block();
  else ::cuda_device::__threadfence();
}

}  // namespace cuda

namespace cuhost {

// The functions of an atomic and of a reference to one: `Self` gives the place.
template <class Self, class T, cuda::thread_scope scope>
class Atomic {
  using Order = cuda::memory_order;
  static constexpr Order in_sequence = cuda::memory_order_seq_cst;

  T* place() const { return static_cast<const Self*>(this)->cuhost_place(); }
  static void before(Order order) {
    if (order == cuda::memory_order_release || order >= cuda::memory_order_acq_rel)
      cuda::atomic_thread_fence(order, scope);
  }
  static void after(Order order) {
    if (order != cuda::memory_order_release) cuda::atomic_thread_fence(order, scope);
  }
  template <class F>
  T update(Update kind, Order order, F&& change) const {
    before(order);
    if constexpr (scope == cuda::thread_scope_block) of_block(place());
    T old = atomic(kind, place(), change);
    after(order);
    return old;
  }

 public:
  using value_type = T;
  static constexpr bool is_always_lock_free = sizeof(T) <= 8;
  bool is_lock_free() const { return is_always_lock_free; }

  CUHOST_EACH_TIME T load(Order order = in_sequence) const {
    cuhost_turn_before((const void*)place());
    if (order == in_sequence) before(order);
    T value = load_strong(place());
    after(order);
    return value;
  }
  operator T() const { return load(); }
  T exchange(T value, Order order = in_sequence) const {
    return update(replaces, order, [&](T) { return value; });
  }
  void store(T value, Order order = in_sequence) const { exchange(value, order); }
  bool compare_exchange_strong(T& expected, T value, Order order, Order) const {
    T seen = update(decides, order, [&](T old) { return cuhost_differ(old, expected) ? old : value; });
    bool equal = !cuhost_differ(seen, expected);
    expected = seen;
    return equal;
  }
  bool compare_exchange_strong(T& expected, T value, Order order = in_sequence) const {
    return compare_exchange_strong(expected, value, order, order);
  }
  bool compare_exchange_weak(T& expected, T value, Order order, Order) const {
    return compare_exchange_strong(expected, value, order);
  }
  bool compare_exchange_weak(T& expected, T value, Order order = in_sequence) const {
    return compare_exchange_strong(expected, value, order);
  }
#define CUHOST_FETCH(name, kind, expression)                           \
  template <class V>                                                   \
  T fetch_##name(V given, Order order = in_sequence) const {           \
    return update(kind, order, [&](T old) -> T { return expression; }); \
  }
  CUHOST_FETCH(add, adds, old + given)
  CUHOST_FETCH(sub, adds, old - given)
  CUHOST_FETCH(and, decides, old & given)
  CUHOST_FETCH(or, decides, old | given)
  CUHOST_FETCH(xor, adds, old ^ given)
  CUHOST_FETCH(min, decides, (T)given < old ? (T)given : old)
  CUHOST_FETCH(max, decides, old < (T)given ? (T)given : old)
#undef CUHOST_FETCH
#define CUHOST_ASSIGN(sign, name)               \
  template <class V>                            \
  T operator sign##=(V given) const {           \
    return fetch_##name(given) sign given;      \
  }
  CUHOST_ASSIGN(+, add)
  CUHOST_ASSIGN(-, sub)
  CUHOST_ASSIGN(&, and)
  CUHOST_ASSIGN(|, or)
  CUHOST_ASSIGN(^, xor)
#undef CUHOST_ASSIGN
  T operator++(int) const { return fetch_add(1); }
  T operator--(int) const { return fetch_sub(1); }
  T operator++() const { return fetch_add(1) + 1; }
  T operator--() const { return fetch_sub(1) - 1; }

  void wait(T old, Order order = in_sequence) const {
    while (!cuhost_differ(load(order), old)) cuhost_yield();
  }
  void notify_one() const {}
  void notify_all() const {}
};

}  // namespace cuhost

namespace cuda {

template <class T, thread_scope scope = thread_scope_system>
class atomic : public ::cuhost::Atomic<atomic<T, scope>, T, scope> {
  mutable T value;

 public:
  atomic() = default;
  constexpr atomic(T initial) : value(initial) {}
  atomic(const atomic&) = delete;
  atomic& operator=(const atomic&) = delete;
  T operator=(T given) {
    this->store(given);
    return given;
  }
  T* cuhost_place() const { return &value; }
};

template <class T, thread_scope scope = thread_scope_system>
class atomic_ref : public ::cuhost::Atomic<atomic_ref<T, scope>, T, scope> {
  T* at;

 public:
  explicit atomic_ref(T& place) : at(&place) {}
  T operator=(T given) const {
    this->store(given);
    return given;
  }
  T* cuhost_place() const { return at; }
};

}  // namespace cuda
