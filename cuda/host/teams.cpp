#include "teams.h"

#include <cstring>
#include <memory>

#include "clusters.h"
#include "phases.h"

namespace cuhost {
namespace {

// Addresses in the shared memory of other blocks: a bit that no other address in a register of 32 bits
// has, the rank, and the low bits of the address, by which it is found again.
constexpr unsigned remote_bit = 1u << 31, rank_shift = 27;
constexpr unsigned low_mask = (1u << rank_shift) - 1;

Team& team() { return *now->team; }

struct {
  uint64_t blocks, held, ended, arrived, phase;
} grid;

void check_grid() {
  if (!grid.arrived || !grid.ended || grid.arrived + grid.ended < grid.blocks) return;
  fault("runtime", "deadlock: %llu blocks of %s wait at the barrier of the grid, and %llu have ended without",
        (unsigned long long)grid.arrived, running_kernel, (unsigned long long)grid.ended);
}

void phase_ends() {
  ++team().phase;
  team().missing = team().live;
  for (Block* block : team().blocks) {
    if (!block) continue;
    block->due = 0;
    for (int k = 0; k < block->thread_count; ++k)
      if (block->state[k] == at_cluster) block->state[k] = ready;
  }
  cuhost_turns = 0;
}

// Two phases that follow one another pass on nothing to each other's waiters.
const char* place_of_phase(uint64_t phase) { return (const char*)&team() + (phase & 1); }

Block* block_of_rank(unsigned rank) {
  Block* block = rank < team().blocks.size() ? team().blocks[rank] : nullptr;
  if (!block)
    fault("runtime", "%s reaches into the shared memory of block %u of its cluster, which %s", here().c_str(),
          rank, rank < team().blocks.size() ? "has ended" : "does not exist");
  return block;
}

void deliver(const Message& message) {
  if (runs_checked()) cuhost_hooks.receives(&message);
  if (!message.copies.empty()) arrive_with_loads(message.word, message.copies, message.bytes);
  if (!message.arrivals) return;
  cuhost_Arrival arrival = cuhost_phase_arrive(message.word, message.arrivals, false);
  if (arrival.last) cuhost_phase_end(message.word);
}

}  // namespace

void begin_grid(uint64_t blocks, uint64_t held) { grid = {blocks, held, 0, 0, 0}; }

void leave_grid() {
  ++grid.ended;
  check_grid();
}

Index cluster_of(const Entry& entry) {
  if (!entry.cluster) return {1, 1, 1};
  auto packed = (unsigned)entry.cluster;
  return {packed & 255, packed >> 8 & 255, packed >> 16 & 255};
}

Index clusters_of(const Launch& launch, const Entry& entry) {
  Index cluster = cluster_of(entry);
  return {launch.grid.x / cluster.x, launch.grid.y / cluster.y, launch.grid.z / cluster.z};
}

void join_team(Block& block, const std::shared_ptr<Team>& joined) {
  block.team = joined;
  block.rank = (unsigned)joined->blocks.size();
  joined->blocks.push_back(&block);
  joined->live += (unsigned)block.thread_count;
  joined->missing = joined->live;
}

void leave_team(Block& block) {
  if (!block.inbox.empty())
    fault("runtime",
          "block (%u,%u,%u) of %s has ended before what another block of its cluster has sent to its "
          "shared memory arrived",
          block.index.x, block.index.y, block.index.z, running_kernel);
  if (runs_checked() && team().blocks.size() > 1) cuhost_hooks.leaves_cluster();
  team().blocks[block.rank] = nullptr;
  block.team = nullptr;
}

void thread_leaves_team() {
  Team& mine = team();
  if (runs_checked() && mine.blocks.size() > 1) cuhost_hooks.thread_ends();
  --mine.live;
  if (now->threads[current].arrived_in == mine.phase + 1) return;
  if (!--mine.missing) phase_ends();
}

Block* block_reached(uintptr_t& place) {
  for (Block* block : team().blocks) {
    if (!block || block == now || !block->shared.contains(place)) continue;
    uintptr_t address = address_of_kept(block->shared, place);
    if (address) place = address;
    return address ? block : nullptr;
  }
  return nullptr;
}

void send(unsigned rank, Message message) {
  Block* to = block_of_rank(rank);
  const char* kept = kept_place(to->shared, (uintptr_t)message.word);
  uint64_t word = 0;
  if (kept) memcpy(&word, kept, sizeof word);
  if (!is_barrier(word))
    fault("runtime", "%s uses an mbarrier of another block of its cluster that nothing has initialized yet",
          here().c_str());
  to->due = 0;
  to->inbox.push_back(std::make_unique<Message>(std::move(message)));
  if (runs_checked()) cuhost_hooks.sends(to->inbox.back().get());
}

void take_messages() {
  while (!now->inbox.empty()) {
    std::unique_ptr<Message> message = std::move(now->inbox.front());
    now->inbox.pop_front();
    deliver(*message);
  }
}

extern "C" {

// The block's threads meet first, and then the first of them to go on meets other blocks'.
void cuhost_grid_barrier(int line) {
  if (grid.blocks > grid.held)
    fault("constraints",
          "%s calls the barrier of a grid of %llu blocks, of which the GPU holds %llu at once: launch no more",
          here().c_str(), (unsigned long long)grid.blocks, (unsigned long long)grid.held);
  cuhost_barrier(line);
  if (!now->at_grid) {
    now->at_grid = true;
    uint64_t phase = grid.phase;
    const char* place = (const char*)&grid + (phase & 1);
    if (runs_checked()) cuhost_hooks.passes_on_outside(place);
    if (++grid.arrived == grid.blocks) {
      grid.arrived = 0;
      ++grid.phase;
    } else {
      check_grid();
      while (grid.phase == phase) give_way(1);
    }
    cuhost_turns = 0;
    if (runs_checked()) cuhost_hooks.learns_outside(place);
  }
  cuhost_barrier(line);
  now->at_grid = false;
}

unsigned cuhost_map_shared(unsigned address, unsigned rank) {
  if (rank >= team().blocks.size())
    fault("runtime", "%s maps an address to block %u of a cluster of %zu", here().c_str(), rank,
          team().blocks.size());
  if (!in_shared(address))
    fault("runtime", "%s maps an address to another block that is not in shared memory", here().c_str());
  return rank == now->rank ? address : remote_bit | rank << rank_shift | (address & low_mask);
}

void* cuhost_map_shared_rank(const void* address, unsigned rank) {
  auto at = (uintptr_t)address;
  if (!in_shared(at) && !block_reached(at))
    fault("runtime", "%s maps an address to another block that is not in shared memory", here().c_str());
  return rank == now->rank ? (void*)at : kept_place(block_of_rank(rank)->shared, at);
}

unsigned cuhost_shared_rank(const void* address) {
  auto at = (uintptr_t)address;
  if (in_shared(at)) return now->rank;
  if (const Block* block = block_reached(at)) return block->rank;
  fault("runtime", "%s asks for the rank of an address that is not in shared memory", here().c_str());
}

char* cuhost_cluster_place(const void* address) {
  auto at = (uintptr_t)address;
  if (!(at & remote_bit)) return (char*)at;
  uintptr_t there = shared_place((unsigned)at & low_mask, low_mask);
  if (!there) fault("runtime", "%s accesses shared memory beside its variables", here().c_str());
  return (char*)cuhost_map_shared_rank((void*)there, (unsigned)(at & ~(uintptr_t)remote_bit) >> rank_shift);
}

void cuhost_arrive_in_cluster(uint64_t* word, unsigned count) {
  auto address = (uintptr_t)word;
  if (!(address & remote_bit)) {
    if (cuhost_phase_arrive(word, count, false).last) cuhost_phase_end(word);
    return;
  }
  auto* there = (uint64_t*)shared_place((unsigned)address & low_mask, low_mask);
  send((unsigned)(address & ~(uintptr_t)remote_bit) >> rank_shift, {there, count, {}, 0});
}

void cuhost_cluster_arrive(bool release) {
  Team& mine = team();
  uint64_t& arrived_in = now->threads[current].arrived_in;
  if (arrived_in == mine.phase + 1)
    fault("runtime", "%s calls barrier.cluster.arrive twice without barrier.cluster.wait", here().c_str());
  if (release && runs_checked()) cuhost_hooks.passes_on_outside(place_of_phase(mine.phase));
  arrived_in = mine.phase + 1;
  if (!--mine.missing) phase_ends();
}

void cuhost_cluster_wait() {
  uint64_t arrived_in = now->threads[current].arrived_in;
  if (!arrived_in)
    fault("runtime", "%s calls barrier.cluster.wait without barrier.cluster.arrive", here().c_str());
  while (team().phase == arrived_in - 1) {
    now->state[current] = at_cluster;
    block_here();
  }
  now->threads[current].arrived_in = 0;
  if (runs_checked()) cuhost_hooks.learns_outside(place_of_phase(arrived_in - 1));
  take_messages();
}
}

}  // namespace cuhost
