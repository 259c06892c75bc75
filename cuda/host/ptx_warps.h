// Atomics and warp functions of inline PTX.
#pragma once

#include "ptx_arithmetic.h"
#include "ptx_memory.h"

namespace cuhost {

enum cuhost_Order { cuhost_order_relaxed, cuhost_order_acquire, cuhost_order_release, cuhost_order_acq_rel };

template <class T, cuhost_Order order, class F>
inline auto cuhost_atom(Update update, char* at, F&& change) {
  using V = typename T::value;
  if constexpr (order == cuhost_order_release || order == cuhost_order_acq_rel) cuda_device::__threadfence();
  V old = atomic(update, (V*)at, change);
  if constexpr (order == cuhost_order_acquire || order == cuhost_order_acq_rel) cuda_device::__threadfence();
  return T::put(old);
}
#define CUHOST_PTX_ATOMIC(update, name, expression)                                       \
  template <class T, cuhost_Order order>                                                  \
  inline auto cuhost_atom_##name(char* at, Bits64 bits) {                                 \
    using V = typename T::value;                                                          \
    V value = T::get(bits);                                                               \
    return cuhost_atom<T, order>(update, at, [=](V old) -> V { return expression; });     \
  }
CUHOST_PTX_ATOMIC(adds, add, old + value)
CUHOST_PTX_ATOMIC(decides, min, value < old ? value : old)
CUHOST_PTX_ATOMIC(decides, max, old < value ? value : old)
CUHOST_PTX_ATOMIC(decides, and, old & value)
CUHOST_PTX_ATOMIC(decides, or, old | value)
CUHOST_PTX_ATOMIC(adds, xor, old ^ value)
CUHOST_PTX_ATOMIC(decides, exch, value)
CUHOST_PTX_ATOMIC(adds, inc, old >= value ? V(0) : old + 1)
CUHOST_PTX_ATOMIC(adds, dec, old == 0 || old > value ? value : old - 1)
#undef CUHOST_PTX_ATOMIC
template <class T, cuhost_Order order>
inline auto cuhost_atom_cas(char* at, Bits64 expected, Bits64 bits) {
  using V = typename T::value;
  V compare = T::get(expected), value = T::get(bits);
  return cuhost_atom<T, order>(decides, at, [=](V old) -> V { return old == compare ? value : old; });
}

// PTX ISA, "shfl.sync": c holds the mask of a segment and the bound of source lanes in it.
struct cuhost_Shuffled {
  unsigned value;
  bool inside;
};
template <char mode>
inline cuhost_Shuffled cuhost_shfl(unsigned value, unsigned b, unsigned c, unsigned members) {
  int lane = cuhost_lane(), by = (int)(b & 31), segment = (int)(c >> 8 & 31), clamp = (int)(c & 31);
  int last = (lane & segment) | (clamp & ~segment), first = lane & segment;
  int source = mode == 'u'   ? lane - by
               : mode == 'd' ? lane + by
               : mode == 'b' ? lane ^ by
                             : first | (by & ~segment);
  bool inside = mode == 'u' ? source >= last : source <= last;
  return {shuffle(members, value, inside ? source : lane), inside};
}
inline bool cuhost_vote_all(bool p, unsigned members) { return cuda_device::__all_sync(members, p); }
inline bool cuhost_vote_any(bool p, unsigned members) { return cuda_device::__any_sync(members, p); }
inline bool cuhost_vote_uni(bool p, unsigned members) {
  return cuda_device::__uni_sync(members, p);
}
inline unsigned cuhost_vote_ballot(bool p, unsigned members) { return cuda_device::__ballot_sync(members, p); }

// The lowest of them.
inline unsigned cuhost_elect(unsigned members) {
  return (unsigned)__builtin_ctz(cuda_device::__ballot_sync(members, 1));
}

#define CUHOST_PTX_REDUX(name)                                                            \
  template <class T>                                                                      \
  inline unsigned cuhost_redux_##name(Bits64 value, unsigned members) {                   \
    return (unsigned)cuda_device::__reduce_##name##_sync(members, T::get(value));         \
  }
CUHOST_PTX_REDUX(add)
CUHOST_PTX_REDUX(min)
CUHOST_PTX_REDUX(max)
CUHOST_PTX_REDUX(and)
CUHOST_PTX_REDUX(or)
CUHOST_PTX_REDUX(xor)
#undef CUHOST_PTX_REDUX

}  // namespace cuhost
