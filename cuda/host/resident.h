// The blocks that the GPU holds: those that have begun and not ended.
#pragma once

#include <deque>
#include <vector>

#include "block.h"
#include "grid.h"

namespace cuhost {

// One block runs until it ends. One that may be waiting for others gives way to them, up to as many as
// a GPU holds at once, and goes on after 1, 2, 4 ... of them have ended, or when none can begin. In a cluster,
// it goes on at once unless it can do nothing, and when another one sends it something.
class Resident {
 public:
  enum Step { nothing_left, gave_way, ended };
  explicit Resident(const Scheduler& scheduler);
  // Begins a block of `blocks`, whose threads start in the order of the seed, or goes on with one.
  Step run_one(Blocks& blocks, uint64_t order_seed);
  bool any_gave_way() const { return given_way; }
  unsigned last_slot() const { return last; }  // of the block that ran last

 private:
  const Scheduler& scheduler;
  Index cluster;
  size_t most;
  uint64_t ended_blocks = 0, in_vain = 0;  // slices since a block has begun or ended
  uint64_t stuck = 0;                      // slices since any thread has run
  bool given_way = false, told = false;
  unsigned last = 0;
  std::deque<Block*> waiting;              // the longest first
  Block* holder = nullptr;                 // whose contents shared memory holds

  Block* first_due();
  size_t next_in_turn();
  Block* take_waiting(size_t place);
  Block* begun(Blocks& blocks, uint64_t order_seed);
  void hold(Block* block);
  void tell_of_waiting();
};

}  // namespace cuhost
