// The blocks of a cluster, and what they send each other.
#pragma once

#include <vector>

#include "block.h"
#include "copies.h"

namespace cuhost {

constexpr unsigned most_blocks_of_cluster = 8;  // CUDA: on all cards with clusters

// Arrivals at a barrier, and copies whose bytes arrive there.
struct Message {
  uint64_t* word;
  unsigned arrivals;
  std::vector<Copy> copies;
  long long bytes;
};

struct Team {
  std::vector<Block*> blocks;    // by rank; null after its end
  uint64_t phase = 0;            // of barrier.cluster
  unsigned live = 0, missing;    // threads that have not ended, and that have not arrived either
};

// The grid's barrier, of a launch of so many blocks on a GPU that holds so many at once.
void begin_grid(uint64_t blocks, uint64_t held);
void leave_grid();               // a block has ended

Index cluster_of(const Entry& entry);
Index clusters_of(const Launch& launch, const Entry& entry);  // of the grid
void join_team(Block& block, const std::shared_ptr<Team>& team);
void leave_team(Block& block);   // it has ended
void thread_leaves_team();       // the running thread has ended
// The block of the running block's cluster whose shared memory has a place in what is kept, which becomes
// the address in shared memory; null if there is none.
Block* block_reached(uintptr_t& place);
// To the block of that rank in the running block's cluster, which is another one.
void send(unsigned rank, Message message);
// What others have sent to the running block happens, on behalf of the running thread.
void take_messages();

}  // namespace cuhost
