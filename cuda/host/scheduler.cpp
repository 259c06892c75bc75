// Runs the threads of one block, each on a fiber, from barrier to barrier.
//
// A fiber runs one thread after another as long as none blocks: a kernel without barriers runs as
// plain calls on one stack. A thread that blocks keeps its fiber until it has finished.
//
// Warps of a block run ahead of one another: each runs up to a barrier that other warps have to reach, before
// the next one begins. With order seed 0 the first warp is ahead, with 1 the last one; in every other block it
// is the other way round. With other seeds a random warp is ahead in every other block. In the rest of them
// threads take turns in a random order, and are interrupted before some of their atomics. Threads whose
// accesses are checked take turns.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>

#include "block.h"
#include "matrices.h"
#include "teams.h"

#define ALWAYS_INLINE [[gnu::always_inline]] inline

namespace cuhost {

extern "C" {
Where cuhost_where;
uint64_t cuhost_turns;
long long cuhost_cycles;
}
uint64_t thread_stamp = 0;
uint32_t* epoch_of;
uint32_t barrier_interval = 0;
uint64_t barriers_passed = 0;
Block* now;
int current = -1;
const Scheduler* running;

namespace {

constexpr int patience = 200;  // turns before others run
constexpr int most_in_vain = 1000;
constexpr uint64_t slice_per_thread = 128, shortest_slice = 4096, longest_slices = 8;
constexpr int nap = 4;                     // turns that __nanosleep() takes where warps run ahead
constexpr int least_lead = 32 * patience;
// Where atomics are interrupted: turns of a thread, and interruptions of a block and of a launch, some of
// which let other blocks run, too.
constexpr int shortest_patience = 3, preemptions_per_thread = 4;
constexpr int most_preemptions = 200'000, most_pauses = 64, pauses_per_block = 2;
// Blocks: every other pause lasts until none but blocks that pause longer can go on.
constexpr uint64_t shortest_pause = 1, longest_pause = 1ull << 40;
constexpr unsigned pause_lengths = 6;      // each twice the one before

int patience_now = patience, turns_left = patience;
int preemptions_left, pauses_left;         // of the launch
uint64_t blocks_begun;         // in this process
bool giving_way;               // a thread lets other blocks run
uint64_t launches_begun;       // in this process, or since `repeat_launches`
uint32_t launch_interval;      // the barrier interval in which the launch began
uint64_t stride;               // between the multiprocessors of blocks that begin one after the other
uint32_t latest_interval;      // of all blocks

// Searches for `next_ahead`.
[[gnu::noinline]] int search_ahead() {
  int count = now->thread_count;
  const State* state = now->state;
  auto find = [&](int from, int to) {
    const void* found = from < to ? memchr(state + from, ready, (size_t)(to - from)) : nullptr;
    return found ? (int)((const State*)found - state) : -1;
  };
  int warp = current / 32 * 32, next = find(current + 1, std::min(warp + 32, count));
  if (next < 0) next = find(warp, current);
  if (next < 0 && now->favourite == count - 1) {
    const void* last = memrchr(state, ready, (size_t)count);
    return last ? (int)((const State*)last - state) : -1;
  }
  if (next < 0) next = find(now->favourite, count);
  return next < 0 ? find(0, now->favourite) : next;
}

// Where warps run ahead, the thread that goes on before all others: one of the running thread's warp, or else
// the first from the favourite on. -1 if there is none, or if that has happened often enough.
ALWAYS_INLINE int next_ahead() {
  Block& block = *now;
  if (!block.ahead || block.lead <= 0) return -1;
  int begun = block.cursor - (block.thread_count - block.live);
  if (begun <= block.waiting + block.warp_waiters) return -1;
  --block.lead;
  int neighbour = current + 1;
  bool found = neighbour % 32 && neighbour < block.thread_count && block.state[neighbour] == ready;
  return found ? neighbour : search_ahead();
}

// Continues with the next runnable thread of this pass, directly from fiber to fiber, or returns to
// the scheduler if there is none or threads remain to be started.
ALWAYS_INLINE void leave() {
  if (int next = next_ahead(); next >= 0) {
    leave_for(now->fiber_of[next]);
    return;
  }
  while (now->cursor == now->thread_count && now->step < now->thread_count) {
    int next = now->order[now->step++];
    if (!can_run(next)) continue;
    if (next != current) leave_for(now->fiber_of[next]);  // it may have come ahead of its turn
    return;
  }
  leave_for_scheduler();
}

uint64_t next_random() {  // xorshift64*, Vigna 2016
  uint64_t& state = now->random_state;
  state ^= state >> 12;
  state ^= state << 25;
  state ^= state >> 27;
  return state * 2685821657736338717ull;
}

void shuffle() {
  for (int i = now->thread_count - 1; i > 0; --i)
    std::swap(now->order[i], now->order[(next_random() >> 33) % (unsigned)(i + 1)]);
}

void release_barrier() {
  if (running->checked) cuhost_hooks.barrier(latest_interval + 1);
  now->interval = barrier_interval = ++latest_interval;
  ++barriers_passed;
  now->verdict = now->votes;
  now->votes = {};
  now->waiting = 0;
  if (now->live == now->thread_count) {
    memset(now->state, ready, (size_t)now->thread_count);
  } else {
    for (int k = 0; k < now->thread_count; ++k) {
      if (now->state[k] == at_barrier) now->state[k] = ready;
    }
  }
}

bool in_cluster() { return now->team->blocks.size() > 1; }

// The first thread in a state; -1 if there is none.
int first_in(State state) {
  for (int k = 0; k < now->thread_count; ++k)
    if (now->state[k] == state) return k;
  return -1;
}

bool other_blocks_reach(const uint64_t* word) {
  return !in_shared((uintptr_t)word) && !on_fiber_stack(word);
}

bool sleeps_for_others(int thread) {
  return now->state[thread] == asleep && other_blocks_reach(now->threads[thread].word);
}

// What other blocks may have ended in the meantime.
void wake_from_outside() {
  for (int k = 0; k < now->thread_count && now->sleepers; ++k) {
    if (!sleeps_for_others(k)) continue;
    if (phase_has_ended(now->threads[k].word, now->threads[k].phase)) wake(now->threads[k].word);
  }
}

// What has been sent to the block happens when a thread goes on.
void wake_for_messages() {
  if (now->inbox.empty()) return;
  for (int k = 0; k < now->thread_count && now->sleepers; ++k) {
    if (now->state[k] != asleep) continue;
    now->state[k] = ready;
    --now->sleepers;
  }
}

// Those that only try; whether there are any, and something may still come of it.
bool wake_triers() {
  if (now->in_vain++ > most_in_vain) return false;
  bool any = false;
  for (int k = 0; k < now->thread_count && now->sleepers; ++k) {
    if (now->state[k] != asleep || !now->threads[k].tries) continue;
    now->state[k] = ready;
    --now->sleepers;
    any = true;
  }
  return any;
}

bool any_sleeps_for_others() {
  if (in_cluster() && (now->sleepers || first_in(at_cluster) >= 0)) return true;
  for (int k = 0; k < now->thread_count && now->sleepers; ++k)
    if (sleeps_for_others(k)) return true;
  return false;
}

[[noreturn]] void asleep_forever(const char* of_which) {
  int k = first_in(asleep);
  if (k < 0) {
    k = first_in(at_cluster);
    fault("runtime",
          "deadlock: %s waits at barrier.cluster for %u more threads of its cluster, and every other thread "
          "of %s waits too or has finished",
          place_of(now->threads[k].index, cuhost_where.block).c_str(), now->team->missing, of_which);
  }
  const Thread& thread = now->threads[k];
  fault("runtime",
        "deadlock: %s waits at a cuda::barrier or mbarrier for %s, and every other thread of %s "
        "waits too or has finished",
        place_of(thread.index, cuhost_where.block).c_str(), missing_at(thread.word).c_str(), of_which);
}

// All threads wait, but not all of them at the barrier.
[[noreturn]] void diverged() {
  if (now->sleepers) asleep_forever("the block");
  int k = 0;
  while (now->state[k] != at_warp && now->state[k] != at_warpgroup && now->state[k] != at_named) ++k;
  std::string waits = place_of(now->threads[k].index, cuhost_where.block);
  if (now->state[k] == at_named) {
    auto number = (unsigned)now->threads[k].value;
    fault("runtime", "deadlock: %s waits at barrier %u, to which %u of %u threads have come", waits.c_str(),
          number, now->named[number].arrived, now->named[number].threads);
  }
  if (now->state[k] == at_warpgroup) {
    const auto* meeting = (const cuhost_Meeting*)now->threads[k].value;
    fault("runtime",
          "divergence: %s calls %s in line %d, which other threads of its warpgroup never call",
          waits.c_str(), meeting->name, meeting->line);
  }
  fault("runtime",
        "divergence: %s waits in a warp function whose mask 0x%08x names lanes that never call it",
        waits.c_str(), now->threads[k].mask);
}

[[noreturn, gnu::cold, gnu::noinline]] void barriers_diverged(int line) {
  Index other = now->threads[now->first_at_barrier].index;
  fault("runtime",
        "barrier divergence: %s waits in line %d and %s in line %d: all threads of a block must "
        "meet at the same barrier",
        here().c_str(), line, place_of(other, cuhost_where.block).c_str(), now->barrier_line);
}

void go_on_with(Block& block) {
  now = &block;
  epoch_of = block.epoch_of;
  barrier_interval = block.interval;
  Index extent = running->launch->block;
  cuhost_where = {{0, 0, 0}, block.index, extent, running->launch->grid, cluster_of(*running->entry)};
}

}  // namespace

void update_stamp() {
  thread_stamp = (uint64_t)barrier_interval << 32 |
                 (uint64_t)(epoch_of[current] & 0x3fffff) << 10 | (unsigned)current;
}

// Inlined into `cuhost_barrier`, where kernels with many barriers spend much of their time.
ALWAYS_INLINE static void go_on_as(int thread) {
  current = thread;
  cuhost_turns += (uint64_t)(patience_now - turns_left);
  patience_now = now->preemptions > 0 ? 1 + (int)((next_random() >> 33) % shortest_patience) : patience;
  turns_left = patience_now;
  cuhost_where.thread = now->threads[thread].index;
  update_stamp();
}

ALWAYS_INLINE static void let_others_run() {
  int mine = current;
  now->fiber_of[mine] = current_fiber;
  leave();
  go_on_as(mine);
}

void enter(int thread) { go_on_as(thread); }

void block_here() { let_others_run(); }

void fiber_body() {
  for (;;) {
    int mine = current_fiber;
    while (now->cursor < now->thread_count) {
      int thread = now->order[now->cursor++];
      now->fiber_of[thread] = mine;
      enter(thread);
      running->entry->call(running->launch->arguments.data());
      thread = current;
      now->state[thread] = done;
      --now->live;
      thread_leaves_team();
      if (now->warp_waiters) release_warp(thread / 32);
      if (int next = next_ahead(); next >= 0) {
        give_fiber(mine);
        leave_for(now->fiber_of[next]);
        mine = current_fiber;
      }
    }
    give_fiber(mine);
    leave();
  }
}

bool runs_checked() { return running && running->checked; }

unsigned running_slot() { return now->slot; }

uint64_t running_block() { return now->number; }

void block_may_wait() { now->may_wait = true; }

Index index_of(unsigned flat, Index extent) {
  return {flat % extent.x, flat / extent.x % extent.y, flat / extent.x / extent.y};
}

bool blocks_have_paused() { return pauses_left < most_pauses; }

uint64_t launches_so_far() { return launches_begun; }

void repeat_launches(uint64_t so_far) { launches_begun = so_far; }

void begin_launch() {
  launch_interval = latest_interval;
  preemptions_left = most_preemptions;
  pauses_left = most_pauses;
  uint64_t drawn = (plan.order_seed + 1) * ++launches_begun * 0x9e3779b97f4a7c15ull >> 24;
  stride = drawn % plan.multiprocessors + 1;
  while (std::gcd(stride, plan.multiprocessors) != 1) ++stride;
  cuhost_cycles += (long long)drawn;
}

// With order seeds from 2 on, a multiprocessor gets two blocks before others get any.
unsigned cuhost_smid() { return (unsigned)((now->number >> (plan.order_seed > 1)) * stride % plan.multiprocessors); }
unsigned cuhost_nsmid() { return plan.multiprocessors; }
unsigned cuhost_warpid() { return (unsigned)((now->number * (stride + 4) + (unsigned)current / 32) % plan.warps); }
unsigned cuhost_nwarpid() { return plan.warps; }

void begin_block(Block& block, const Scheduler& scheduler, uint64_t order_seed) {
  running = &scheduler;
  Index extent = scheduler.launch->block, index{0, 0, 0};
  block.interval = ++latest_interval;
  block.number = ++blocks_begun;
  go_on_with(block);
  block.thread_count = block.live = (int)(extent.x * extent.y * extent.z);
  bool other = !scheduler.checked && (block.index.x + block.index.y + block.index.z) & 1;
  bool descending = order_seed < 2 && (order_seed == 1) != other;
  for (int k = 0; k < block.thread_count; ++k) {
    block.threads[k].index = index;
    block.threads[k].tries = false;
    block.threads[k].arrived_in = 0;
    block.state[k] = fresh;
    block.epoch_of[k] = 0;
    block.order[k] = descending ? block.thread_count - 1 - k : k;
    if (++index.x == extent.x) {
      index.x = 0;
      if (++index.y == extent.y) index.y = 0, ++index.z;
    }
  }
  block.shuffled = order_seed > 1 && !other;
  block.random_state = order_seed * 0x9e3779b97f4a7c15ull + (launches_begun << 20) + barrier_interval - launch_interval + 1;
  if (block.shuffled) shuffle();
  block.ahead = !scheduler.checked && !block.shuffled;
  block.favourite = descending ? block.thread_count - 1 : 0;
  block.preemptions = block.pauses = 0;
  if (order_seed > 1 && block.ahead) {
    block.favourite = (int)(next_random() >> 33) % ((block.thread_count + 31) / 32) * 32;
    std::rotate(block.order, block.order + block.favourite, block.order + block.thread_count);
  }
  if (order_seed > 1 && !scheduler.checked) {
    block.pauses = std::min(pauses_per_block, pauses_left);
    block.preemptions = block.shuffled
        ? std::min(preemptions_per_thread * block.thread_count, preemptions_left) : block.pauses;
  }
  block.lead = least_lead;
  block.votes = {};
  block.in_vain = 0;
  block.at_grid = false;
  std::fill_n(block.named, named_barriers, NamedBarrier{});
  block.waiting = block.warp_waiters = block.mask_waiters = block.sleepers = block.cursor = 0;
  block.step = block.thread_count;  // no pass is in progress while threads are started
  block.slice = std::max(shortest_slice, slice_per_thread * (uint64_t)block.thread_count);
  block.pause = 1;
  block.may_wait = !scheduler.checked;
}

bool proceed(Block& block) {
  go_on_with(block);
  giving_way = false;
  cuhost_turns = 0;
  uint64_t slice = block.slice;
  block.stuck = block.cursor == block.thread_count;
  if (block.sleepers) wake_from_outside();
  if (block.sleepers) wake_for_messages();
  while (block.cursor < block.thread_count) resume(take_fiber());
  while (block.live) {
    if (block.waiting == block.live) {  // since sm_70 a barrier does not wait for exited threads
      release_barrier();
      if (block.shuffled) shuffle();
    }
    // A thread that polls while its siblings wait at a barrier does nothing with the turns that all of them would get.
    auto able = (uint64_t)(block.live - block.waiting), all = (uint64_t)block.thread_count;
    if (giving_way || (block.may_wait && cuhost_turns > std::max(shortest_slice, slice * able / all))) {
      uint64_t most = longest_slices * slice_per_thread * (uint64_t)block.thread_count;
      if (!giving_way) block.slice = std::max(slice, std::min(2 * slice, most));
      return false;
    }
    block.step = 0;
    block.lead = least_lead;
    bool moved = false;
    while (block.step < block.thread_count) {
      int next = block.order[block.step++];
      if (!can_run(next)) continue;
      moved = true;
      resume(block.fiber_of[next]);  // returns when the pass is over
    }
    if (block.mask_waiters && release_masks()) moved = true;
    if (moved) {
      block.stuck = false;
    } else if (block.waiting != block.live && in_cluster() && !block.stuck && block.sleepers) {
      return false;  // others of the cluster are likelier to end a wait than another try
    } else if (block.waiting != block.live && !wake_triers()) {
      if (any_sleeps_for_others()) return false;
      diverged();
    }
  }
  return true;
}

void deadlocked(size_t blocks) {
  char text[80];
  snprintf(text, sizeof text, "the %zu blocks that have begun and not ended", blocks);
  asleep_forever(blocks == 1 ? "the block" : text);
}

void give_way(uint64_t blocks) {
  if (current < 0) return;
  giving_way = true;
  now->pause = blocks;
  cuhost_yield();
}

static void sleep(const uint64_t* word, unsigned phase, bool tries) {
  Thread& thread = now->threads[current];
  thread.word = word;
  thread.phase = phase;
  thread.tries = tries;
  now->state[current] = asleep;
  ++now->sleepers;
  block_here();
}

void sleep_at(const uint64_t* word, unsigned phase) { sleep(word, phase, false); }

bool try_at(const uint64_t* word, unsigned phase) {
  Thread& thread = now->threads[current];
  bool again = thread.tries && thread.word == word && thread.phase == phase;
  if (again) {
    sleep(word, phase, true);
  } else {
    thread.word = word;
    thread.phase = phase;
    thread.tries = true;
    cuhost_yield();
  }
  return again;
}

void wake(const uint64_t* word) {
  cuhost_turns = 0;
  now->in_vain = 0;
  for (int k = 0; k < now->thread_count && now->sleepers; ++k) {
    if (now->state[k] != asleep || now->threads[k].word != word) continue;
    now->state[k] = ready;
    --now->sleepers;
  }
}

extern "C" {

void cuhost_barrier(int line) {
  if (!now->waiting) {
    now->barrier_line = line;
    now->first_at_barrier = current;
  } else if (line != now->barrier_line) {
    barriers_diverged(line);
  }
  now->state[current] = at_barrier;
  ++now->waiting;
  let_others_run();
}

int cuhost_barrier_reduce(int predicate, char operation, int line) {
  Votes& votes = now->votes;
  votes.count += predicate != 0;
  votes.all &= predicate != 0;
  votes.any |= predicate != 0;
  cuhost_barrier(line);
  const Votes& verdict = now->verdict;
  return operation == '+' ? verdict.count : operation == '&' ? verdict.all : verdict.any;
}

void cuhost_yield() {
  if (current < 0) return;  // the text runs before its kernel
  turns_left = 0;
  now->state[current] = turned;
  block_here();
}

void cuhost_turn() {
  if (__builtin_expect(--turns_left <= 0, 0)) cuhost_yield();
}

void cuhost_turn_before(const void* address) {
  if (__builtin_expect(--turns_left > 0, 1)) return;
  if (current >= 0 && now->preemptions > 0) {
    --now->preemptions;
    --preemptions_left;
    if (now->pauses > 0 && !in_shared((uintptr_t)address)) {
      --now->pauses;
      --pauses_left;
      uint64_t length = next_random() >> 33;
      give_way(pauses_left & 1 ? longest_pause + length : shortest_pause << length % pause_lengths);
      return;
    }
  }
  cuhost_yield();
}

void cuhost_nap() {
  if (current < 0 || !now->ahead || (turns_left -= nap) <= 0) cuhost_yield();
}
}

}  // namespace cuhost
