// mbarrier of inline PTX: the barriers of cuda/barrier, which may also wait for bytes to arrive.
#pragma once

#include "clusters.h"
#include "phases.h"

namespace cuhost {

inline uint64_t* cuhost_word(char* at) { return (uint64_t*)at; }

inline void cuhost_mbarrier_init(char* at, unsigned expected) { cuhost_phase_begin(cuhost_word(at), expected); }
inline void cuhost_proxy_fence() {
#if defined(CUHOST_CHECKED)
  cuhost_fence_proxy();
  cuhost_show_barriers();
#endif
}
inline void cuhost_init_fence() {
#if defined(CUHOST_CHECKED)
  cuhost_show_barriers();
#endif
}
inline void cuhost_mbarrier_inval(char* at) { cuhost_phase_forget(cuhost_word(at)); }
inline void cuhost_mbarrier_expect(char* at, unsigned bytes) { cuhost_phase_expect(cuhost_word(at), bytes); }
inline void cuhost_mbarrier_complete(char* at, unsigned bytes) {
  cuhost_phase_expect(cuhost_word(at), -(long long)bytes);
  cuhost_phase_settle(cuhost_word(at));
}
inline void cuhost_mbarrier_arrive_in_cluster(char* at, unsigned count) {
  cuhost_arrive_in_cluster(cuhost_word(at), count);
}
// The state is the phase.
template <bool drop>
inline unsigned long long cuhost_mbarrier_arrive(char* at, unsigned count) {
  cuhost_Arrival arrival = cuhost_phase_arrive(cuhost_word(at), count, drop);
  if (arrival.last) cuhost_phase_end(cuhost_word(at));
  return arrival.phase;
}
template <bool drop>
inline unsigned long long cuhost_mbarrier_arrive_expect(char* at, unsigned bytes) {
  cuhost_mbarrier_expect(at, bytes);
  return cuhost_mbarrier_arrive<drop>(at, 1);
}
inline bool cuhost_mbarrier_wait(char* at, unsigned long long state) {
  return cuhost_phase_tried(cuhost_word(at), (unsigned)state);
}
inline bool cuhost_mbarrier_wait_parity(char* at, unsigned parity) {
  return cuhost_phase_tried(cuhost_word(at), cuhost_phase_of_parity(cuhost_word(at), parity & 1));
}

}  // namespace cuhost
