// Runs the threads of one block, each on a fiber, from barrier to barrier.
//
// A fiber runs one thread after another as long as none blocks: a kernel without barriers runs as
// plain calls on one stack. A thread that blocks keeps its fiber until it has finished.
#include <cerrno>
#include <cstring>
#include <sys/mman.h>

#include "fiber.h"
#include "runtime.h"

namespace cuhost {

extern "C" {
Where cuhost_where;
}
uint64_t thread_stamp = 0;
uint32_t epoch_of[max_threads];
uint32_t barrier_interval = 0;
uint64_t barriers_passed = 0;
uint64_t blocks_begun = 0;
uintptr_t fiber_low = 0, fiber_bytes = 0;

namespace {

constexpr size_t page = 65536;         // the largest page of the supported hosts
constexpr size_t stack_bytes = 8 * page;  // as much as the local memory of a CUDA thread
// Stacks start at different cache sets: otherwise, equal offsets in 1024 stacks would share one.
constexpr size_t stride = page + stack_bytes + page;

// A thread that has let others run may be waiting for them: `turned`.
enum State : unsigned char { fresh, ready, turned, at_barrier, at_warp, at_mask, asleep, done };
constexpr int patience = 200;  // turns before others run

struct Thread {
  Index index;
  unsigned mask;           // of the warp function it waits in
  WarpOperation operation;
  int source;
  uint64_t value;          // given, then received
  const uint64_t* word;    // of the barrier at which it sleeps
};

Thread threads[max_threads];
State state[max_threads];       // separate, because every barrier scans them
int fiber_of[max_threads];
Context fibers[max_threads];
int idle[max_threads], idle_count, fiber_count;
int order[max_threads];
int thread_count, cursor, step, live, waiting, warp_waiters, mask_waiters, sleepers;
int current = -1, current_fiber, turns_left;
int barrier_line, first_at_barrier;  // of those waiting
Context scheduler_context;
const Scheduler* running;
uint64_t random_state;
struct {
  int count, all, any;
} votes, verdict;

bool can_run(int thread) { return state[thread] == ready || state[thread] == turned; }

void enter(int thread) {
  current = thread;
  turns_left = patience;
  cuhost_where.thread = threads[thread].index;
  update_stamp();
}

// Continues with the next runnable thread of this pass, directly from fiber to fiber, or returns to
// the scheduler if there is none or threads remain to be started.
void leave(Context& from) {
  while (cursor == thread_count && step < thread_count) {
    int next = order[step++];
    if (!can_run(next)) continue;
    current_fiber = fiber_of[next];
    switch_to(from, fibers[current_fiber]);
    return;
  }
  switch_to(from, scheduler_context);
}

void block_here() {
  int mine = current;
  fiber_of[mine] = current_fiber;
  leave(fibers[current_fiber]);
  enter(mine);
}

void release_warp(int warp);

void fiber_body() {
  for (;;) {
    int mine = current_fiber;
    while (cursor < thread_count) {
      int thread = order[cursor++];
      fiber_of[thread] = mine;
      enter(thread);
      running->entry->call(running->launch->arguments.data());
      thread = current;
      state[thread] = done;
      --live;
      if (warp_waiters) release_warp(thread / 32);
    }
    idle[idle_count++] = mine;
    leave(fibers[mine]);
  }
}

int take_fiber() {
  if (idle_count) return idle[--idle_count];
  if (!fiber_low) {
    fiber_bytes = stride * max_threads;
    void* pool = mmap(nullptr, fiber_bytes, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pool == MAP_FAILED) fault("runtime", "no memory for stacks: %s", strerror(errno));
    fiber_low = (uintptr_t)pool;
  }
  int index = fiber_count++;
  char* stack = (char*)fiber_low + stride * index + page;
  if (mprotect(stack, stack_bytes, PROT_READ | PROT_WRITE))
    fault("runtime", "no memory for stacks: %s", strerror(errno));
  size_t colour = (size_t)index * 832 % 61440;
  start_at(fibers[index], stack, stack_bytes - colour, fiber_body);
  return index;
}

void resume(int fiber) {
  current_fiber = fiber;
  switch_to(scheduler_context, fibers[fiber]);
}

uint64_t next_random() {  // xorshift64*, Vigna 2016
  random_state ^= random_state >> 12;
  random_state ^= random_state << 25;
  random_state ^= random_state >> 27;
  return random_state * 2685821657736338717ull;
}

void shuffle() {
  for (int i = thread_count - 1; i > 0; --i) {
    int j = (int)((next_random() >> 33) % (unsigned)(i + 1));
    int other = order[i];
    order[i] = order[j];
    order[j] = other;
  }
}

int warp_end(int first) { return first + 32 < thread_count ? first + 32 : thread_count; }

const char* name_of(WarpOperation operation) {
  return operation == warp_sync ? "__syncwarp" : operation == warp_ballot ? "a vote" : "a shuffle";
}

// Lanes that meet must have called the same function.
void check_meeting(int lane, int other) {
  if (threads[lane].operation == threads[other].operation) return;
  std::string one = place_of(threads[lane].index, cuhost_where.block);
  std::string two = place_of(threads[other].index, cuhost_where.block);
  fault("runtime", "divergence: %s calls %s and %s calls %s with the same mask 0x%08x", one.c_str(),
        name_of(threads[lane].operation), two.c_str(), name_of(threads[other].operation),
        threads[lane].mask);
}

// Lanes that asked at the same line for those that are active go on together, once all others of
// their warp wait elsewhere or have finished.
bool release_mask(int first) {
  int last = warp_end(first);
  for (int k = first; k < last; ++k)
    if (state[k] == fresh || state[k] == ready) return false;
  bool any = false;
  for (int lane = first; lane < last; ++lane) {
    if (state[lane] != at_mask) continue;
    int line = threads[lane].source;
    unsigned together = 0;
    for (int k = lane; k < last; ++k)
      if (state[k] == at_mask && threads[k].source == line) together |= 1u << (k - first);
    for (int k = lane; k < last; ++k) {
      if (!(together >> (k - first) & 1)) continue;
      threads[k].value = together;
      state[k] = ready;
      --mask_waiters;
    }
    any = true;
  }
  return any;
}

bool release_masks() {
  bool any = false;
  for (int first = 0; first < thread_count && mask_waiters; first += 32) any |= release_mask(first);
  return any;
}

// Releases lanes that wait with the same mask once all live lanes in that mask have arrived.
void release_warp(int warp) {
  int first = warp * 32, last = warp_end(first);
  for (int lane = first; lane < last; ++lane) {
    if (state[lane] != at_warp) continue;
    unsigned mask = threads[lane].mask, ballot = 0, members = 0;
    bool complete = true;
    for (int other = first; other < last && complete; ++other) {
      if (!(mask >> (other - first) & 1) || state[other] == done) continue;
      complete = state[other] == at_warp && threads[other].mask == mask;
      members |= 1u << (other - first);
      ballot |= (threads[other].value ? 1u : 0u) << (other - first);
    }
    if (!complete) continue;
    for (int other = lane; other < last; ++other)
      if (members >> (other - first) & 1) check_meeting(lane, other);
    if (running->checked)
      cuhost_hooks.lanes_meet(first, members, threads[lane].operation == warp_sync);
    uint64_t given[32];
    for (int k = first; k < last; ++k) given[k - first] = threads[k].value;
    for (int k = first; k < last; ++k) {
      if (!(members >> (k - first) & 1)) continue;
      Thread& thread = threads[k];
      if (thread.operation == warp_ballot) thread.value = ballot;
      if (thread.operation == warp_exchange) {
        // The value of a lane that does not take part is undefined: poison.
        bool there = thread.source >= 0 && thread.source < 32 && members >> thread.source & 1;
        if (there) thread.value = given[thread.source];
        else poison(&thread.value, sizeof thread.value);
      }
      state[k] = ready;
      --warp_waiters;
    }
  }
}

void release_barrier() {
  if (running->checked) cuhost_hooks.barrier();
  ++barrier_interval;
  ++barriers_passed;
  verdict = votes;
  votes = {0, 1, 0};
  waiting = 0;
  if (live == thread_count) {
    memset(state, ready, (size_t)thread_count);
  } else {
    for (int k = 0; k < thread_count; ++k) {
      if (state[k] == at_barrier) state[k] = ready;
    }
  }
}

// All threads wait, but not all of them at the barrier.
[[noreturn]] void diverged() {
  int k = 0;
  while (state[k] != at_warp && state[k] != asleep) ++k;
  if (state[k] == asleep)
    fault("runtime",
          "deadlock: %s waits at a cuda::barrier for %u more arrivals, and every other thread of "
          "the block waits too or has finished; blocks run one after another on the emulated GPU",
          place_of(threads[k].index, cuhost_where.block).c_str(),
          missing_arrivals(threads[k].word));
  std::string waits = place_of(threads[k].index, cuhost_where.block);
  fault("runtime",
        "divergence: %s waits in a warp function whose mask 0x%08x names lanes that never call it",
        waits.c_str(), threads[k].mask);
}

}  // namespace

bool runs_checked() { return running && running->checked; }

void update_stamp() {
  thread_stamp = (uint64_t)barrier_interval << 32 |
                 (uint64_t)(epoch_of[current] & 0x3fffff) << 10 | (unsigned)current;
}

Index index_of(unsigned flat, Index extent) {
  return {flat % extent.x, flat / extent.x % extent.y, flat / extent.x / extent.y};
}

bool on_fiber_stack(const void* address) { return (uintptr_t)address - fiber_low < fiber_bytes; }

bool beyond_fiber_stack(const void* address) {
  if (!on_fiber_stack(address)) return false;
  size_t offset = ((uintptr_t)address - fiber_low) % stride;
  return offset < page || offset >= page + stack_bytes;
}

void run_block(const Scheduler& scheduler, Index block, uint64_t order_seed) {
  running = &scheduler;
  ++blocks_begun;
  Index extent = scheduler.launch->block;
  thread_count = (int)(extent.x * extent.y * extent.z);
  cuhost_where = {{0, 0, 0}, block, extent, scheduler.launch->grid};
  ++barrier_interval;
  Index index{0, 0, 0};
  for (int k = 0; k < thread_count; ++k) {
    threads[k].index = index;
    state[k] = fresh;
    epoch_of[k] = 0;
    order[k] = order_seed == 1 ? thread_count - 1 - k : k;
    if (++index.x == extent.x) {
      index.x = 0;
      if (++index.y == extent.y) index.y = 0, ++index.z;
    }
  }
  bool shuffled = order_seed > 1;
  random_state = order_seed * 0x9e3779b97f4a7c15ull + barrier_interval + 1;
  if (shuffled) shuffle();
  votes = {0, 1, 0};
  live = thread_count;
  waiting = warp_waiters = mask_waiters = sleepers = cursor = 0;
  step = thread_count;  // no pass is in progress while threads are started
  scheduler.block_begins();
  while (cursor < thread_count) resume(take_fiber());
  while (live) {
    if (waiting == live) {  // since sm_70 a barrier does not wait for exited threads
      release_barrier();
      if (shuffled) shuffle();
    }
    step = 0;
    bool moved = false;
    while (step < thread_count) {
      int next = order[step++];
      if (!can_run(next)) continue;
      moved = true;
      resume(fiber_of[next]);  // returns when the pass is over
    }
    if (mask_waiters && release_masks()) moved = true;
    if (!moved && waiting != live) diverged();
  }
}

void sleep_at(const uint64_t* word) {
  threads[current].word = word;
  state[current] = asleep;
  ++sleepers;
  block_here();
}

void wake(const uint64_t* word) {
  for (int k = 0; k < thread_count && sleepers; ++k) {
    if (state[k] != asleep || threads[k].word != word) continue;
    state[k] = ready;
    --sleepers;
  }
}

extern "C" {

void cuhost_barrier(int line) {
  if (!waiting) {
    barrier_line = line;
    first_at_barrier = current;
  } else if (line != barrier_line) {
    std::string first = place_of(threads[first_at_barrier].index, cuhost_where.block);
    fault("runtime",
          "barrier divergence: %s waits in line %d and %s in line %d: all threads of a block must "
          "meet at the same barrier",
          here().c_str(), line, first.c_str(), barrier_line);
  }
  state[current] = at_barrier;
  ++waiting;
  block_here();
}

int cuhost_barrier_reduce(int predicate, char operation, int line) {
  votes.count += predicate != 0;
  votes.all &= predicate != 0;
  votes.any |= predicate != 0;
  cuhost_barrier(line);
  return operation == '+' ? verdict.count : operation == '&' ? verdict.all : verdict.any;
}

uint64_t cuhost_warp(unsigned mask, uint64_t value, int source, WarpOperation operation) {
  Thread& thread = threads[current];
  if (!(mask >> (current % 32) & 1))
    fault("runtime", "%s calls a warp function whose mask 0x%08x does not name it",
          here().c_str(), mask);
  thread.mask = mask;
  thread.value = value;
  thread.source = source;
  thread.operation = operation;
  state[current] = at_warp;
  ++warp_waiters;
  int mine = current;
  release_warp(mine / 32);
  if (state[mine] == at_warp)
    block_here();
  else
    enter(mine);
  return threads[mine].value;
}

unsigned cuhost_active_lanes(int line) {
  int mine = current;
  threads[mine].source = line;
  state[mine] = at_mask;
  ++mask_waiters;
  if (!release_mask(mine / 32 * 32)) block_here();
  return (unsigned)threads[mine].value;
}

void cuhost_yield() {
  if (current < 0) return;  // the text runs before its kernel
  state[current] = turned;
  block_here();
}

void cuhost_turn() {
  if (__builtin_expect(--turns_left <= 0, 0)) cuhost_yield();
}

int cuhost_lane() { return current % 32; }
}

}  // namespace cuhost
