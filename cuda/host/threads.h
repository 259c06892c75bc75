// Barriers, warp functions and atomics of CUDA C++.
#pragma once

#include <type_traits>

#include "interface.h"
#include "vectors.h"

namespace cuhost {

// The scheduler writes it, but not while a thread of the kernel runs: a thread reads the same
// values from its first statement to its last. Declared constant it compiles quickly, is exempt
// from race detection, and cannot be assigned to, as in CUDA.
extern "C" const Where cuhost_where;
// The same under names that no macro of a text has.
struct cuhost_Indices {
  Index cuhost_thread, cuhost_block, cuhost_block_dim, cuhost_grid_dim, cuhost_cluster_dim;
};
extern const cuhost_Indices cuhost_indices __asm__("cuhost_where");
static_assert(sizeof(cuhost_Indices) == sizeof(Where), "both are one object");

template <class T>
inline auto to_slot(T value) {
  static_assert(sizeof(T) <= 8, "a warp exchanges values of at most 8 bytes");
  uint64_t slot = 0;
  __builtin_memcpy(&slot, &value, sizeof value);
  return slot;
}

template <class T>
inline auto shuffle(unsigned mask, T value, int source) {
  uint64_t slot = cuhost_warp(mask, to_slot(value), source, warp_exchange);
  T result;
  __builtin_memcpy(&result, &slot, sizeof result);
  return result;
}

#if defined(CUHOST_CHECKED)
#define CUHOST_UNCHECKED __attribute__((no_sanitize("thread"), noinline))
#else
#define CUHOST_UNCHECKED inline
#endif
#define CUHOST_EACH_TIME inline __attribute__((always_inline))

template <class T>
inline auto cuhost_differ(const T& one, const T& other) {
  if constexpr (std::is_arithmetic_v<T>) return one != other;
  else return __builtin_memcmp(&one, &other, sizeof(T)) != 0;
}

// Threads run one at a time, so a plain read followed by a write is atomic.
template <class T, class F>
CUHOST_UNCHECKED auto atomic(Update update, T* address, F&& change) {
  cuhost_turn_before((const void*)address);
#if defined(CUHOST_CHECKED)
  cuhost_atomic(address, sizeof(T), update);
#else
  (void)update;
#endif
  T old = *address, value = change(old);
  *address = value;
  bool changed = cuhost_differ(old, value);
  if (changed) cuhost_turns = 0;
#if defined(CUHOST_CHECKED)
  cuhost_atomic_ends(address, changed);
#endif
  return old;
}

#if defined(CUHOST_CHECKED)
template <class T>
CUHOST_UNCHECKED T load_unchecked(const T* address) {
  return *address;
}
template <class T>
CUHOST_UNCHECKED void store_unchecked(T* address, const T& value) {
  *address = value;
}
#endif
// By the cache for what no thread writes as long as the kernel runs.
template <class T>
CUHOST_EACH_TIME T load_constant(const T* address) {
#if defined(CUHOST_CHECKED)
  cuhost_load_constant(address, sizeof(T));
#endif
  return *address;
}
// Without races with one another and with atomics. Inlined, so that each has an instruction of its own.
template <class T>
CUHOST_EACH_TIME T load_strong(const T* address) {
#if defined(CUHOST_CHECKED)
  cuhost_strong(address, sizeof(T), false);
  return load_unchecked(address);
#else
  return *address;
#endif
}
template <class T>
CUHOST_EACH_TIME void store_strong(T* address, const T& value) {
#if defined(CUHOST_CHECKED)
  cuhost_strong(address, sizeof(T), true);
  store_unchecked(address, value);
#else
  *address = value;
#endif
}

}  // namespace cuhost

#define threadIdx (::cuhost::cuhost_indices.cuhost_thread)
#define blockIdx (::cuhost::cuhost_indices.cuhost_block)
#define blockDim (::cuhost::cuhost_indices.cuhost_block_dim)
#define gridDim (::cuhost::cuhost_indices.cuhost_grid_dim)
#define warpSize 32

namespace cuda_device {

// `line` is that of the call.
inline void __syncthreads(int line = __builtin_LINE()) { cuhost::cuhost_barrier(line); }
inline int __syncthreads_count(int p, int line = __builtin_LINE()) {
  return cuhost::cuhost_barrier_reduce(p, '+', line);
}
inline int __syncthreads_and(int p, int line = __builtin_LINE()) {
  return cuhost::cuhost_barrier_reduce(p, '&', line);
}
inline int __syncthreads_or(int p, int line = __builtin_LINE()) {
  return cuhost::cuhost_barrier_reduce(p, '|', line);
}
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  cuhost::cuhost_warp(mask, 0, 0, cuhost::warp_sync);
}
#if defined(CUHOST_CHECKED)
inline void __threadfence() { cuhost::cuhost_fence(true); }
inline void __threadfence_block() { cuhost::cuhost_fence(false); }
#else
inline void __threadfence() { __atomic_signal_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_signal_fence(__ATOMIC_SEQ_CST); }
#endif
inline void __threadfence_system() { __threadfence(); }
inline void __cluster_barrier_arrive() { cuhost::cuhost_cluster_arrive(true); }
inline void __cluster_barrier_arrive_relaxed() { cuhost::cuhost_cluster_arrive(false); }
inline void __cluster_barrier_wait() { cuhost::cuhost_cluster_wait(); }
inline void* __cluster_map_shared_rank(const void* at, unsigned rank) {
  return cuhost::cuhost_map_shared_rank(at, rank);
}
inline unsigned __cluster_query_shared_rank(const void* at) { return cuhost::cuhost_shared_rank(at); }
inline void __threadfence_cluster() { __threadfence(); }
// Launches follow one another: there is nothing to wait for.
inline void cudaGridDependencySynchronize() {}
inline void cudaTriggerProgrammaticLaunchCompletion() {}
inline void __nanosleep(unsigned) { cuhost::cuhost_nap(); }
inline unsigned __activemask(int line = __builtin_LINE()) {
  return cuhost::cuhost_active_lanes(line);
}
inline unsigned __ballot_sync(unsigned mask, int p) {
  return (unsigned)cuhost::cuhost_warp(mask, p != 0, 0, cuhost::warp_ballot);
}
inline int __any_sync(unsigned mask, int p) { return __ballot_sync(mask, p) != 0; }
inline int __all_sync(unsigned mask, int p) { return __ballot_sync(mask, !p) == 0; }
inline int __uni_sync(unsigned mask, int p) {
  unsigned yes = __ballot_sync(mask, p), no = __ballot_sync(mask, !p);
  return !yes || !no;
}

template <class T>
inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
  int base = cuhost::cuhost_lane() & ~(width - 1);
  return cuhost::shuffle(mask, value, base + (lane & (width - 1)));
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  int lane = cuhost::cuhost_lane(), source = lane - (int)delta;
  return cuhost::shuffle(mask, value, source < (lane & ~(width - 1)) ? lane : source);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  int lane = cuhost::cuhost_lane(), source = lane + (int)delta;
  return cuhost::shuffle(mask, value, source > (lane | (width - 1)) ? lane : source);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
  int lane = cuhost::cuhost_lane(), source = lane ^ lanes;
  return cuhost::shuffle(mask, value, source > (lane | (width - 1)) ? lane : source);
}

#define CUHOST_ATOMIC(update, name, T, expression)                                    \
  inline T name(T* address, T value) {                                                \
    return cuhost::atomic(cuhost::update, address, [&](T old) -> T { return expression; }); \
  }
#define CUHOST_ATOMIC_INTEGERS(update, name, expression)                              \
  CUHOST_ATOMIC(update, name, int, expression)                                        \
  CUHOST_ATOMIC(update, name, unsigned, expression)                                   \
  CUHOST_ATOMIC(update, name, unsigned long long, expression)
CUHOST_ATOMIC_INTEGERS(adds, atomicAdd, old + value)
CUHOST_ATOMIC(adds, atomicAdd, float, old + value)
CUHOST_ATOMIC(adds, atomicAdd, double, old + value)
CUHOST_ATOMIC(adds, atomicSub, int, old - value)
CUHOST_ATOMIC(adds, atomicSub, unsigned, old - value)
CUHOST_ATOMIC_INTEGERS(decides, atomicMax, old < value ? value : old)
CUHOST_ATOMIC(decides, atomicMax, long long, old < value ? value : old)
CUHOST_ATOMIC_INTEGERS(decides, atomicMin, value < old ? value : old)
CUHOST_ATOMIC(decides, atomicMin, long long, value < old ? value : old)
CUHOST_ATOMIC_INTEGERS(decides, atomicAnd, old & value)
CUHOST_ATOMIC_INTEGERS(decides, atomicOr, old | value)
CUHOST_ATOMIC_INTEGERS(adds, atomicXor, old ^ value)
CUHOST_ATOMIC_INTEGERS(replaces, atomicExch, value)
CUHOST_ATOMIC(replaces, atomicExch, float, value)
CUHOST_ATOMIC(adds, atomicInc, unsigned, old >= value ? 0u : old + 1u)
CUHOST_ATOMIC(adds, atomicDec, unsigned, old == 0 || old > value ? value : old - 1u)
// Of vectors each element is atomic.
inline float2 atomicAdd(float2* address, float2 v) {
  return {atomicAdd(&address->x, v.x), atomicAdd(&address->y, v.y)};
}
inline float4 atomicAdd(float4* address, float4 v) {
  return {atomicAdd(&address->x, v.x), atomicAdd(&address->y, v.y), atomicAdd(&address->z, v.z),
          atomicAdd(&address->w, v.w)};
}
#undef CUHOST_ATOMIC
#undef CUHOST_ATOMIC_INTEGERS
#define CUHOST_ATOMIC_CAS(T)                                                          \
  inline T atomicCAS(T* address, T compare, T value) {                                \
    return cuhost::atomic(cuhost::decides, address,                                   \
                          [&](T old) -> T { return old == compare ? value : old; });  \
  }
CUHOST_ATOMIC_CAS(int)
CUHOST_ATOMIC_CAS(unsigned)
CUHOST_ATOMIC_CAS(unsigned short)
CUHOST_ATOMIC_CAS(unsigned long long)
#undef CUHOST_ATOMIC_CAS

template <class T>
CUHOST_EACH_TIME T __ldg(const T* address) {
  return cuhost::load_constant(address);
}
// What other caches keep makes no difference to the result. But at the L2 cache blocks can meet, as they can
// through a volatile variable.
#define CUHOST_LOAD(name)                                                             \
  template <class T>                                                                  \
  inline T name(const T* address) {                                                   \
    return *address;                                                                  \
  }
CUHOST_LOAD(__ldca)
CUHOST_LOAD(__ldcs)
CUHOST_LOAD(__ldlu)
#undef CUHOST_LOAD
#define CUHOST_LOAD(name)                                                             \
  template <class T>                                                                  \
  CUHOST_EACH_TIME T name(const T* address) {                                         \
    return cuhost::load_strong(address);                                              \
  }
CUHOST_LOAD(__ldcg)
CUHOST_LOAD(__ldcv)
#undef CUHOST_LOAD
#define CUHOST_STORE(name, store)                                                     \
  template <class T>                                                                  \
  CUHOST_EACH_TIME void name(T* address, std::common_type_t<T> value) {               \
    store;                                                                            \
  }
CUHOST_STORE(__stcs, *address = value)
CUHOST_STORE(__stwb, *address = value)
CUHOST_STORE(__stcg, cuhost::store_strong(address, value))
CUHOST_STORE(__stwt, cuhost::store_strong(address, value))
#undef CUHOST_STORE

// Addresses of one space are those of all; shared memory lies below 4 GiB.
inline size_t __cvta_generic_to_shared(const void* p) { return (size_t)p; }
inline size_t __cvta_generic_to_global(const void* p) { return (size_t)p; }
inline void* __cvta_shared_to_generic(size_t p) { return (void*)p; }
inline void* __cvta_global_to_generic(size_t p) { return (void*)p; }
inline unsigned __isShared(const void* p) { return cuhost::cuhost_is_shared(p); }
inline unsigned __isLocal(const void* p) { return cuhost::cuhost_is_local(p); }
inline unsigned __isGlobal(const void* p) {
  return !cuhost::cuhost_is_shared(p) && !cuhost::cuhost_is_local(p);
}

// Lanes of the mask that have not exited, each with its value: f(lane, value).
template <class T, class F>
inline auto cuhost_each_lane(unsigned mask, T value, F&& f) {
  unsigned members = __ballot_sync(mask, 1);
  for (unsigned left = members; left; left &= left - 1) {
    int lane = __builtin_ctz(left);
    f(lane, cuhost::shuffle(mask, value, lane));
  }
  return members;
}
#define CUHOST_REDUCE(name, T, expression)                                            \
  inline T name(unsigned mask, T value) {                                             \
    T result = value;                                                                 \
    cuhost_each_lane(mask, value, [&](int lane, T other) {                                   \
      if (lane != cuhost::cuhost_lane()) result = expression;                         \
    });                                                                               \
    return result;                                                                    \
  }
CUHOST_REDUCE(__reduce_add_sync, unsigned, result + other)
CUHOST_REDUCE(__reduce_add_sync, int, result + other)
CUHOST_REDUCE(__reduce_min_sync, unsigned, other < result ? other : result)
CUHOST_REDUCE(__reduce_min_sync, int, other < result ? other : result)
CUHOST_REDUCE(__reduce_max_sync, unsigned, result < other ? other : result)
CUHOST_REDUCE(__reduce_max_sync, int, result < other ? other : result)
CUHOST_REDUCE(__reduce_and_sync, unsigned, result & other)
CUHOST_REDUCE(__reduce_or_sync, unsigned, result | other)
CUHOST_REDUCE(__reduce_xor_sync, unsigned, result ^ other)
#undef CUHOST_REDUCE
template <class T>
inline unsigned __match_any_sync(unsigned mask, T value) {
  unsigned same = 0;
  cuhost_each_lane(mask, value, [&](int lane, T other) {
    same |= (cuhost::to_slot(other) == cuhost::to_slot(value) ? 1u : 0u) << lane;
  });
  return same;
}
template <class T>
inline unsigned __match_all_sync(unsigned mask, T value, int* predicate) {
  unsigned same = 0;
  unsigned members = cuhost_each_lane(mask, value, [&](int lane, T other) {
    same |= (cuhost::to_slot(other) == cuhost::to_slot(value) ? 1u : 0u) << lane;
  });
  *predicate = same == members;
  return same == members ? members : 0;
}

// Time goes on at each look; it measures nothing here. Its step is odd, so that each bit changes.
inline long long clock64() { return cuhost::cuhost_cycles += 17; }
inline long clock() { return (long)clock64(); }

}  // namespace cuda_device

// PTX's special registers, for the translator.
namespace cuhost {
inline long long cuhost_clock64() { return cuda_device::clock64(); }
inline unsigned cuhost_clock() { return (unsigned)cuhost_clock64(); }
inline unsigned cuhost_clock_hi() { return (unsigned)(cuhost_clock64() >> 32); }
inline long long cuhost_globaltimer() { return cuhost_clock64(); }
inline unsigned cuhost_globaltimer_lo() { return cuhost_clock(); }
inline unsigned cuhost_globaltimer_hi() { return cuhost_clock_hi(); }
inline unsigned cuhost_laneid() { return (unsigned)cuhost_lane(); }
}  // namespace cuhost
