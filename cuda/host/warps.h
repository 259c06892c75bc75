// How the warps of a checked launch access memory; linked only into the checked program.
#pragma once

#include "runtime.h"

namespace cuhost {

extern int sampled_warp[access_kinds];  // of the running interval; -1 for none
extern uint32_t sampled_interval;
extern bool profiling;

void warps_launch_begins(int warps);
void warps_block_begins();
void warps_profiled();          // record no more
void warps_interval_begins();
void warps_record(Access kind, uintptr_t at, unsigned bytes, const void* site);
const WarpTally* warps_tally();  // one for each kind

// `site` identifies the instruction, so that lanes that skip an access do not shift the others.
inline void warps_access(Access kind, uintptr_t at, unsigned bytes, const void* site) {
  if (!profiling) return;
  if (__builtin_expect(barrier_interval != sampled_interval, 0)) warps_interval_begins();
  if ((int)(thread_stamp >> 5 & 31) == sampled_warp[kind]) warps_record(kind, at, bytes, site);
}

}  // namespace cuhost
