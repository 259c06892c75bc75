// A block on the emulated GPU, and what the parts of the scheduler share.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "runtime.h"

namespace cuhost {

// A thread that has let others run may be waiting for them: `turned`.
enum State : unsigned char { fresh, ready, turned, at_barrier, at_warp, at_mask, at_warpgroup, at_named, at_cluster, asleep, done };

struct Thread {
  Index index;
  unsigned mask;           // of the warp function it waits in
  WarpOperation operation;
  int source;
  uint64_t value;          // given, then received
  const uint64_t* word;    // of the cuda::barrier at which it sleeps
  unsigned phase;          // whose end it waits for
  bool tries;              // it wakes, too, when no other thread can go on
  uint64_t arrived_in;     // the phase of barrier.cluster, plus one, in which it has arrived and not waited
};

constexpr unsigned named_barriers = 16;
struct NamedBarrier {
  unsigned threads, arrived;  // of the running round
  uint64_t round;
};

struct Votes {
  int count = 0, all = 1, any = 0;
};

struct Team;     // of a cluster, see teams.h
struct Message;

struct Block {
  unsigned slot;           // unique among the blocks that have begun and not ended
  uint64_t number;         // unique in the process
  Index index;
  Thread threads[max_threads];
  State state[max_threads];           // separate, because every barrier scans them
  uint32_t epoch_of[max_threads];
  int fiber_of[max_threads], order[max_threads];
  int thread_count, cursor, step, live, waiting, warp_waiters, mask_waiters, sleepers;
  int barrier_line, first_at_barrier;  // of those waiting
  Votes votes, verdict;
  NamedBarrier named[named_barriers];
  uint32_t interval;       // the barrier interval it is in
  uint64_t random_state;
  bool shuffled;
  bool ahead;              // warps run ahead of one another, see begin_block
  int favourite;           // the thread that comes first then
  int lead;                // how often threads of this pass may still go on before their turn
  int preemptions, pauses;  // how often threads may still be interrupted before their atomics; for other blocks
  int in_vain;             // how often threads have tried since a phase has ended
  bool stuck;              // no thread could run when it was last its turn: only others can end its wait
  uint64_t slice;          // turns it may take before other blocks run
  bool may_wait;           // it has read again what others can change; always true where that is not checked
  uint64_t pause, due;     // blocks that end before it runs again, and how many will have by then
  KeptShared shared;
  bool at_grid;            // one of its threads has come to the grid's barrier, on behalf of all
  std::shared_ptr<Team> team;
  unsigned rank;           // in its cluster
  std::deque<std::unique_ptr<Message>> inbox;  // the oldest first
};

extern Block* now;         // the running block
extern int current;        // the running thread
extern const Scheduler* running;

inline bool can_run(int thread) {
  return now->state[thread] == ready || now->state[thread] == turned;
}

// scheduler.cpp
void enter(int thread);    // goes on as this thread
void block_here();         // lets others run until this thread can
void begin_launch();
// Launches that follow have threads and blocks in the order of those after that many, with the same order seed.
uint64_t launches_so_far();
void repeat_launches(uint64_t so_far);
bool blocks_have_paused();  // of this launch
void begin_block(Block& block, const Scheduler& scheduler, uint64_t order_seed);
// Goes on with a block; whether it has ended. If not, it may be waiting for other blocks.
bool proceed(Block& block);
// Of the running block, while it is stuck, and so are all of the `blocks` that have not ended.
[[noreturn]] void deadlocked(size_t blocks);

// lanes.cpp
void release_warp(int warp);  // lanes whose mask is complete
bool release_masks();         // lanes that asked which are active; whether there were any

// stacks.cpp
int take_fiber();
void give_fiber(int fiber);  // its thread has ended
void resume(int fiber);      // from the scheduler
void leave_for(int fiber);   // from the running fiber
void leave_for_scheduler();
extern int current_fiber;
void fiber_body();           // scheduler.cpp

}  // namespace cuhost
