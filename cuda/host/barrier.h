// cuda/barrier: barriers of any number of arrivals, and copies that one of their phases waits for.
#pragma once

#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

#include "bulk_copies.h"
#include "phases.h"
#include "pieces.h"
#include "ptx_barriers.h"
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
  uint64_t* cuhost_word() { return &word; }
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

// The bulk copies of sm_90, whose bytes a phase waits for.
namespace device {

template <thread_scope scope, class F>
inline uint64_t* barrier_native_handle(barrier<scope, F>& b) { return b.cuhost_word(); }
template <thread_scope scope, class F>
inline void barrier_expect_tx(barrier<scope, F>& b, ptrdiff_t bytes) {
  ::cuhost::cuhost_phase_expect(b.cuhost_word(), bytes);
}
template <thread_scope scope, class F>
[[nodiscard]] inline typename barrier<scope, F>::arrival_token barrier_arrive_tx(barrier<scope, F>& b, ptrdiff_t count,
                                                                                 ptrdiff_t bytes) {
  barrier_expect_tx(b, bytes);
  return b.arrive(count);
}
template <class T, size_t alignment, thread_scope scope, class F>
inline async_contract_fulfillment memcpy_async_tx(T* to, const T* from, aligned_size_t<alignment> size,
                                                  barrier<scope, F>& b) {
  static_assert(alignment >= 16, "memcpy_async_tx needs an alignment of 16 bytes or more");
  ::cuhost::cuhost_bulk_load(to, from, (unsigned)size, b.cuhost_word(), 0);
  return async_contract_fulfillment::async;
}

namespace experimental {

inline void fence_proxy_async_shared_cta() { ::cuhost::cuhost_proxy_fence(); }
template <thread_scope scope, class F>
inline void cp_async_bulk_global_to_shared(void* to, const void* from, uint32_t bytes, barrier<scope, F>& b) {
  ::cuhost::cuhost_bulk_load(to, from, bytes, b.cuhost_word(), 0);
}
inline void cp_async_bulk_shared_to_global(void* to, const void* from, uint32_t bytes) {
  ::cuhost::cuhost_bulk_store(to, from, bytes);
}
inline void cp_async_bulk_commit_group() { ::cuhost::cuhost_bulk_commit(); }
template <int groups>
inline void cp_async_bulk_wait_group_read() { ::cuhost::cuhost_bulk_wait(groups); }
#define CUHOST_TILES(rank, parameters, corner)                                                          \
  template <class Map, thread_scope scope, class F>                                                     \
  inline void cp_async_bulk_tensor_##rank##d_global_to_shared(void* to, const Map* map,                 \
                                                              CUHOST_LISTED parameters, barrier<scope, F>& b) { \
    const int at[] = {CUHOST_LISTED corner};                                                            \
    ::cuhost::cuhost_tile_load(to, map, rank, at, b.cuhost_word(), 0);                                  \
  }                                                                                                     \
  template <class Map>                                                                                  \
  inline void cp_async_bulk_tensor_##rank##d_shared_to_global(const Map* map, CUHOST_LISTED parameters, \
                                                              const void* from) {                       \
    const int at[] = {CUHOST_LISTED corner};                                                            \
    ::cuhost::cuhost_tile_store(map, rank, at, from);                                                   \
  }
#define CUHOST_LISTED(...) __VA_ARGS__
CUHOST_TILES(1, (int a), (a))
CUHOST_TILES(2, (int a, int b0), (a, b0))
CUHOST_TILES(3, (int a, int b0, int c), (a, b0, c))
CUHOST_TILES(4, (int a, int b0, int c, int d), (a, b0, c, d))
CUHOST_TILES(5, (int a, int b0, int c, int d, int e), (a, b0, c, d, e))
#undef CUHOST_LISTED
#undef CUHOST_TILES

}  // namespace experimental
}  // namespace device

}  // namespace cuda
