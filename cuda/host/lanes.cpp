// What the lanes of a warp do together: they wait for one another, exchange values and vote.
#include "block.h"

#include <cstring>

#include "warpgroups.h"

namespace cuhost {
namespace {

constexpr int group_threads = 128;

int warp_end(int first) { return first + 32 < now->thread_count ? first + 32 : now->thread_count; }

cuhost_Meeting* meeting_of(const Thread& thread) { return (cuhost_Meeting*)thread.value; }

const char* name_of(const Thread& thread) {
  switch (thread.operation) {
    case warp_sync: return "__syncwarp";
    case warp_ballot: return "a vote";
    case warp_meeting: return meeting_of(thread)->name;
    default: return "a shuffle";
  }
}

// Lanes that meet must have called the same function.
void check_meeting(int lane, int other) {
  const Thread *one = &now->threads[lane], *two = &now->threads[other];
  if (one->operation == two->operation) {
    if (one->operation != warp_meeting || meeting_of(*one)->line == meeting_of(*two)->line) return;
    fault("runtime", "divergence: %s calls %s in line %d and %s calls %s in line %d",
          place_of(one->index, cuhost_where.block).c_str(), name_of(*one), meeting_of(*one)->line,
          place_of(two->index, cuhost_where.block).c_str(), name_of(*two), meeting_of(*two)->line);
  }
  fault("runtime", "divergence: %s calls %s and %s calls %s with the same mask 0x%08x",
        place_of(one->index, cuhost_where.block).c_str(), name_of(*one),
        place_of(two->index, cuhost_where.block).c_str(), name_of(*two), one->mask);
}

// Lanes that asked at the same line for those that are active go on together, once all others of
// their warp wait elsewhere or have finished.
bool release_mask(int first) {
  int last = warp_end(first);
  State* state = now->state;
  for (int k = first; k < last; ++k)
    if (state[k] == fresh || state[k] == ready) return false;
  bool any = false;
  for (int lane = first; lane < last; ++lane) {
    if (state[lane] != at_mask) continue;
    int line = now->threads[lane].source;
    unsigned together = 0;
    for (int k = lane; k < last; ++k)
      if (state[k] == at_mask && now->threads[k].source == line) together |= 1u << (k - first);
    for (int k = lane; k < last; ++k) {
      if (!(together >> (k - first) & 1)) continue;
      now->threads[k].value = together;
      state[k] = ready;
      --now->mask_waiters;
    }
    any = true;
  }
  return any;
}

// Does what all lanes of a warp do together, such as a product of matrices.
void meet(int first, unsigned members) {
  const Thread& thread = now->threads[first + __builtin_ctz(members)];
  if (members != ~0u)
    fault("runtime", "divergence: %s calls %s, which takes all 32 lanes of a warp, and %d are there",
          place_of(thread.index, cuhost_where.block).c_str(), name_of(thread),
          __builtin_popcount(members));
  cuhost_Meeting* lanes[32];
  for (int k = 0; k < 32; ++k) lanes[k] = meeting_of(now->threads[first + k]);
  lanes[0]->work(lanes);
}

// The threads of a warpgroup go on together once all have come to the same instruction.
bool release_warpgroup(int first) {
  for (int k = current + 1; k < current + group_threads; ++k)
    if (now->state[first + k % group_threads] != at_warpgroup) return false;
  cuhost_Meeting* threads[group_threads];
  for (int k = 0; k < group_threads; ++k) {
    const Thread &one = now->threads[first], &other = now->threads[first + k];
    threads[k] = meeting_of(other);
    if (threads[k]->line == threads[0]->line && threads[k]->work == threads[0]->work) continue;
    fault("runtime", "divergence: %s calls %s in line %d and %s calls %s in line %d",
          place_of(one.index, cuhost_where.block).c_str(), threads[0]->name, threads[0]->line,
          place_of(other.index, cuhost_where.block).c_str(), threads[k]->name, threads[k]->line);
  }
  threads[0]->work(threads);
  memset(now->state + first, ready, group_threads);
  return true;
}

// Gives each of the lanes that have met its result.
void exchange(int first, unsigned members) {
  uint64_t given[32];
  unsigned ballot = 0;
  int last = warp_end(first);
  for (int k = first; k < last; ++k) {
    given[k - first] = now->threads[k].value;
    if (members >> (k - first) & 1) ballot |= (given[k - first] ? 1u : 0u) << (k - first);
  }
  for (int k = first; k < last; ++k) {
    if (!(members >> (k - first) & 1)) continue;
    Thread& thread = now->threads[k];
    if (thread.operation == warp_ballot) thread.value = ballot;
    if (thread.operation == warp_exchange) {
      // The value of a lane that does not take part is undefined: poison.
      bool there = thread.source >= 0 && thread.source < 32 && members >> thread.source & 1;
      if (there) thread.value = given[thread.source];
      else poison(&thread.value, sizeof thread.value);
    }
    now->state[k] = ready;
    --now->warp_waiters;
  }
}

// The lane beside it, which usually arrives next, or before.
bool waits_for_neighbour(int mine) {
  int next = (mine & ~31) | ((mine + 1) & 31);
  if (next >= now->thread_count || !(now->threads[mine].mask >> (next & 31) & 1)) return false;
  return now->state[next] != done && now->state[next] != at_warp;
}

}  // namespace

bool release_masks() {
  bool any = false;
  for (int first = 0; first < now->thread_count && now->mask_waiters; first += 32)
    any |= release_mask(first);
  return any;
}

// Releases lanes that wait with the same mask once all live lanes in that mask have arrived.
void release_warp(int warp) {
  int first = warp * 32, last = warp_end(first);
  const State* state = now->state;
  unsigned incomplete = 0;  // the mask that was looked at last
  for (int lane = first; lane < last; ++lane) {
    if (state[lane] != at_warp || now->threads[lane].mask == incomplete) continue;
    unsigned mask = now->threads[lane].mask, members = 0;
    bool complete = true;
    for (int other = first; other < last && complete; ++other) {
      if (!(mask >> (other - first) & 1) || state[other] == done) continue;
      complete = state[other] == at_warp && now->threads[other].mask == mask;
      members |= 1u << (other - first);
    }
    if (!complete) {
      incomplete = mask;
      continue;
    }
    for (int other = lane; other < last; ++other)
      if (members >> (other - first) & 1) check_meeting(lane, other);
    if (running->checked)
      cuhost_hooks.lanes_meet(first, members, now->threads[lane].operation == warp_sync);
    if (now->threads[lane].operation == warp_meeting) meet(first, members);
    exchange(first, members);
  }
}

extern "C" {

uint64_t cuhost_warp(unsigned mask, uint64_t value, int source, WarpOperation operation) {
  int mine = current;
  Thread& thread = now->threads[mine];
  if (!(mask >> (mine % 32) & 1))
    fault("runtime", "%s calls a warp function whose mask 0x%08x does not name it",
          here().c_str(), mask);
  thread.mask = mask;
  thread.value = value;
  thread.source = source;
  thread.operation = operation;
  now->state[mine] = at_warp;
  ++now->warp_waiters;
  if (!waits_for_neighbour(mine)) release_warp(mine / 32);
  if (now->state[mine] == at_warp)
    block_here();
  else
    enter(mine);
  return thread.value;
}

unsigned cuhost_active_lanes(int line) {
  int mine = current;
  Thread& thread = now->threads[mine];
  thread.source = line;
  now->state[mine] = at_mask;
  ++now->mask_waiters;
  if (!release_mask(mine / 32 * 32)) block_here();
  return (unsigned)thread.value;
}

int cuhost_lane() { return current % 32; }

void cuhost_meet(cuhost_Meeting* mine) { cuhost_warp(~0u, (uint64_t)mine, 0, warp_meeting); }

void cuhost_meet_warpgroup(cuhost_Meeting* mine) {
  int me = current, first = me / group_threads * group_threads;
  if (first + group_threads > now->thread_count)
    fault("runtime", "%s calls %s in line %d, which takes the four warps of a warpgroup: its block has %d "
          "threads", here().c_str(), mine->name, mine->line, now->thread_count);
  now->threads[me].value = (uint64_t)mine;
  now->state[me] = at_warpgroup;
  if (!release_warpgroup(first)) block_here();
  else enter(me);
}
}

}  // namespace cuhost
