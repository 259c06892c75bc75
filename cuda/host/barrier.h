// cuda/barrier: barriers of any number of arrivals, and copies that one of their phases waits for.
#pragma once

#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

#include "phases.h"
#include "pieces.h"
#include "scopes.h"

namespace cuhost {

struct NoCompletion {};

template <class F>
struct Completion {
  F function;
  void complete(uint64_t* word) {
    cuhost_completion_begins(word);
    function();
    cuhost_completion_ends(word);
  }
};
template <>
struct Completion<NoCompletion> {
  void complete(const uint64_t*) {}
};

}  // namespace cuhost

namespace cuda {

template <size_t alignment>
struct aligned_size_t {
  static_assert(alignment && !(alignment & (alignment - 1)), "an alignment is a power of two");
  static constexpr size_t align = alignment;
  size_t value;
  explicit constexpr aligned_size_t(size_t bytes) : value(bytes) {}
  constexpr operator size_t() const { return value; }
};

enum class async_contract_fulfillment { none, async };

template <thread_scope scope, class F = ::cuhost::NoCompletion>
class barrier : ::cuhost::Completion<F> {
 public:
  class arrival_token {
    unsigned phase;
    friend barrier;
  };

  barrier() = default;
  barrier(ptrdiff_t expected, F completion = F()) { init(this, expected, completion); }
  barrier(const barrier&) = delete;
  barrier& operator=(const barrier&) = delete;

  friend void init(barrier* self, ptrdiff_t expected, F completion = F()) {
    ::cuhost::cuhost_phase_begin(&self->word, expected);
    if constexpr (!std::is_same_v<F, ::cuhost::NoCompletion>) self->function = completion;
  }

  [[nodiscard]] arrival_token arrive(ptrdiff_t count = 1) { return arrived(count, false); }
  void wait(arrival_token&& token) const { ::cuhost::cuhost_phase_wait(&word, token.phase); }
  void wait_parity(bool parity) const {
    ::cuhost::cuhost_phase_wait(&word, ::cuhost::cuhost_phase_of_parity(&word, parity));
  }
  void arrive_and_wait() { wait(arrive()); }
  void arrive_and_drop() { (void)arrived(1, true); }

  // Other threads run once in the meantime, whatever the time.
  template <class Time>
  bool try_wait_for(arrival_token&& token, const Time&) const { return tried(token.phase); }
  template <class Time>
  bool try_wait_until(arrival_token&& token, const Time&) const { return tried(token.phase); }
  template <class Time>
  bool try_wait_parity_for(bool parity, const Time&) const {
    return tried(::cuhost::cuhost_phase_of_parity(&word, parity));
  }
  template <class Time>
  bool try_wait_parity_until(bool parity, const Time& time) const {
    return try_wait_parity_for(parity, time);
  }

  static constexpr ptrdiff_t max() { return (1 << 20) - 1; }

  // Not CUDA's.
  void cuhost_copy(void* to, const void* from, size_t bytes, size_t alignment) {
    ::cuhost::cuhost_phase_copy(&word, to, from, bytes, alignment);
  }

 private:
  alignas(8) uint64_t word;

  arrival_token arrived(ptrdiff_t count, bool drop) {
    ::cuhost::cuhost_Arrival arrival = ::cuhost::cuhost_phase_arrive(&word, count, drop);
    if (arrival.last) {
      this->complete(&word);
      ::cuhost::cuhost_phase_end(&word);
    }
    arrival_token token;
    token.phase = arrival.phase;
    return token;
  }
  bool tried(unsigned phase) const {
    if (::cuhost::cuhost_phase_over(&word, phase)) return true;
    ::cuhost::cuhost_yield();
    return ::cuhost::cuhost_phase_over(&word, phase);
  }
};

// `Sync` is a barrier or a pipeline.
template <class Group, class T, class Size, class Sync>
inline auto memcpy_async(const Group& group, T* to, const T* from, Size size, Sync& sync)
    -> decltype(sync.cuhost_copy(nullptr, nullptr, 0, 0), async_contract_fulfillment()) {
  ::cuhost::share_copy(group, to, from, size, [&](void* to, const void* from, size_t bytes, size_t alignment) {
    sync.cuhost_copy(to, from, bytes, alignment);
  });
  return async_contract_fulfillment::async;
}
template <class T, class Size, class Sync>
inline auto memcpy_async(T* to, const T* from, Size size, Sync& sync)
    -> decltype(sync.cuhost_copy(nullptr, nullptr, 0, 0), async_contract_fulfillment()) {
  return memcpy_async(::cuhost::OneThread(), to, from, size, sync);
}

}  // namespace cuda
