// How the warps of a checked launch access memory; linked only into the checked program.
#pragma once

#include "runtime.h"

namespace cuhost {

constexpr int no_warp = -1, first_warp = -2;  // none is sampled, or the first that accesses
extern int sampled_warp[access_kinds];        // of the running interval
extern uint32_t accessing[access_kinds];      // warps of this launch that have been seen to, as bits
extern uint64_t accesses_of[32];              // by the number of a warp, of all kinds
extern uint32_t sampled_interval;
extern bool profiling;

void warps_launch_begins();
void warps_block_begins();
void warps_profiled();          // record no more
void warps_interval_begins();
void warps_record(Access kind, uintptr_t at, unsigned bytes, const void* site);
const WarpTally* warps_tally();  // one for each kind
// How many updates of a sector the busiest kilobyte of global memory takes in a launch of so many
// `blocks`, of which some have `run`. Counted for the sampled warps.
uint64_t warps_contention(uint64_t run, uint64_t blocks);
int warps_active();              // how many share the accesses, if none makes more than the busiest

// `site` identifies the instruction, so that lanes that skip an access do not shift the others.
inline void warps_access(Access kind, uintptr_t at, unsigned bytes, const void* site) {
  if (!profiling) return;
  if (__builtin_expect(barrier_interval != sampled_interval, 0)) warps_interval_begins();
  int warp = (int)(thread_stamp >> 5 & 31);
  accessing[kind] |= 1u << warp;
  ++accesses_of[warp];
  if (__builtin_expect(sampled_warp[kind] == first_warp, 0)) sampled_warp[kind] = warp;
  if (warp == sampled_warp[kind]) warps_record(kind, at, bytes, site);
}

}  // namespace cuhost
