// Barriers of some of a block's warps, by PTX ISA, "barrier": those with a number of threads.
#include "block.h"

namespace cuhost {
namespace {

void release(NamedBarrier& barrier) {
  barrier.arrived = 0;
  ++barrier.round;
  for (int k = 0; k < now->thread_count; ++k) {
    if (now->state[k] == at_named && &now->named[now->threads[k].value] == &barrier) now->state[k] = ready;
  }
  cuhost_turns = 0;
}

}  // namespace

extern "C" void cuhost_named_barrier(unsigned number, unsigned threads, bool waits) {
  if (number >= named_barriers || !threads || threads % 32)
    fault("runtime", "%s comes to barrier %u for %u threads: there are %u, for whole warps", here().c_str(),
          number, threads, named_barriers);
  NamedBarrier& barrier = now->named[number];
  if (barrier.arrived && barrier.threads != threads)
    fault("runtime", "%s comes to barrier %u for %u threads, and others for %u", here().c_str(), number,
          threads, barrier.threads);
  const char* place = (const char*)&barrier + (barrier.round & 1);
  if (runs_checked()) cuhost_hooks.passes_on(place);
  barrier.threads = threads;
  if (++barrier.arrived == threads) {
    release(barrier);
  } else if (waits) {
    now->threads[current].value = number;
    now->state[current] = at_named;
    block_here();
  }
  if (waits && runs_checked()) cuhost_hooks.learns(place);
}

}  // namespace cuhost
