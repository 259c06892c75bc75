// Which accesses are ordered: by barriers, by __syncwarp, and by fences with atomics.
// Linked only into the checked program.
#pragma once

#include <string>

#include "runtime.h"

namespace cuhost {

extern uint32_t launch_first, block_first;  // barrier intervals
extern uint32_t own_first;                  // from here on, all intervals are the running block's

void order_launch_begins(int threads);
void order_block_begins(unsigned slot);
void order_block_resumes(unsigned slot);
void order_lanes_meet(int first, unsigned members, bool all_memory);
void order_barrier(uint32_t next);
void order_fence(bool device);
// An atomic, or an access as volatile: what the thread has fenced becomes known to all that read or
// update the place later.
void order_strong(uintptr_t at, bool global, bool writes);

// What the thread did so far becomes known to all that later learn from the place; to those of other
// blocks if it is in global memory.
void order_passes_on(uintptr_t at, bool global);
void order_learns(uintptr_t at, bool global);

// The same, from the thread that sends a message to the one of another block that receives it.
void order_sends(uintptr_t message);
void order_receives(uintptr_t message);

// fence.proxy.async: what the thread did so far comes before what others, ordered after it, do through
// the asynchronous proxy.
void order_fence_proxy();
// The accesses of the next `begins` to `ends` are of the asynchronous proxy.
void order_async_begins();
void order_async_ends();
// Whether a write, by its stamp, may not be visible to the asynchronous proxy.
bool hidden_from_async(uint64_t write);

// Of clusters: whether the thread knows that the block in a slot has begun, that it has accessed the shared
// memory of that one, and what threads that end know of accesses to their block's.
bool knows_begun(unsigned slot);
void order_reaches(unsigned slot);
void order_thread_ends();
std::string reached_by();  // a thread whose access may come after the running block's end; "" if none

bool known_in_block(uint64_t earlier, unsigned thread);
bool known_from_elsewhere(uint64_t earlier, unsigned thread);  // before an interval of the block
uint8_t fences_of_block();  // of the device, by the running block, modulo 256
bool of_other_block(uint64_t stamp);
Index block_of(uint64_t stamp);

// Whether an earlier access, given by its stamp, may still be in progress for the running thread,
// whose stamp is `now`.
inline bool unordered(uint64_t earlier, uint64_t now, bool global) {
  uint64_t difference = earlier ^ now;
  if (!(difference >> 32))
    return difference & 1023 && !known_in_block(earlier, now & 1023);
  uint32_t interval = (uint32_t)(earlier >> 32);
  if (!global || interval < launch_first || interval >= own_first) return false;
  return !known_from_elsewhere(earlier, now & 1023);
}

}  // namespace cuhost
