#include "resident.h"

#include "teams.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <unistd.h>

namespace cuhost {
namespace {

std::vector<std::unique_ptr<Block>> allocated;
std::vector<Block*> unused;
constexpr uint64_t longest_wait = 1024;

Block* take_block() {
  if (unused.empty()) {
    allocated.emplace_back(new Block);
    allocated.back()->slot = (unsigned)allocated.size() - 1;
    unused.push_back(allocated.back().get());
  }
  Block* block = unused.back();
  unused.pop_back();
  return block;
}

}  // namespace

Resident::Resident(const Scheduler& scheduler) : scheduler(scheduler) {
  size_t shared = static_shared_bytes() + scheduler.launch->shared_bytes;
  most = scheduler.launch->resident;
  if (shared) most = std::min(most, plan.shared_of_card / shared);
  begin_launch();
  cluster = cluster_of(*scheduler.entry);
  most = std::max<size_t>(most, blocks_of(cluster));
  begin_grid(blocks_of(scheduler.launch->grid), most);
}

Resident::Step Resident::run_one(Blocks& blocks, uint64_t order_seed) {
  Block* block = first_due();
  if (!block && waiting.size() + blocks_of(cluster) <= most) block = begun(blocks, order_seed);
  if (!block && !waiting.empty()) block = take_waiting(next_in_turn());
  if (!block) return nothing_left;
  last = block->slot;
  bool has_ended = proceed(*block);
  check_shared(scheduler.checked);  // the check catches accesses beside static variables itself
  if (has_ended) {
    ++ended_blocks;
    in_vain = stuck = 0;
    holder = nullptr;
    leave_team(*block);
    leave_grid();
    unused.push_back(block);
    return ended;
  }
  given_way = true;
  ++in_vain;
  stuck = block->stuck ? stuck + 1 : 0;
  // Each in turn only after as many runs in vain, see `next_in_turn`.
  if (stuck > 2 * waiting.size() + 1) deadlocked(waiting.size() + 1);
  bool of_cluster = blocks_of(cluster) > 1;
  block->due = of_cluster && !block->stuck ? 0 : ended_blocks + block->pause;
  block->pause = std::min<uint64_t>(2 * block->pause, longest_wait);
  waiting.push_back(block);
  tell_of_waiting();
  return gave_way;
}

// The first that has waited long enough; in clusters, others may have sent a later one what it waits for, and
// blocks that were interrupted do not pause equally long.
Block* Resident::first_due() {
  size_t sought = blocks_of(cluster) > 1 || blocks_have_paused() ? waiting.size() : std::min<size_t>(waiting.size(), 1);
  for (size_t k = 0; k < sought; ++k)
    if (waiting[k]->due <= ended_blocks) return take_waiting(k);
  return nullptr;
}

// The one that is due first while blocks are interrupted; if they wait for one another, each in turn.
size_t Resident::next_in_turn() {
  if (!blocks_have_paused() || in_vain > waiting.size()) return 0;
  auto sooner = [](const Block* one, const Block* other) { return one->due < other->due; };
  return (size_t)(std::min_element(waiting.begin(), waiting.end(), sooner) - waiting.begin());
}

Block* Resident::take_waiting(size_t place) {
  Block* block = waiting[place];
  waiting.erase(waiting.begin() + (long)place);
  if (holder == block) return block;
  hold(block);
  restore_shared(block->shared);
  if (scheduler.checked) cuhost_hooks.block_resumes(block->slot);
  return block;
}

// With the other blocks of its cluster.
Block* Resident::begun(Blocks& blocks, uint64_t order_seed) {
  unsigned number;
  if (!(waiting.empty() ? blocks.next(number) : blocks.first(number))) return nullptr;
  Index first = index_of(number, clusters_of(*scheduler.launch, *scheduler.entry));
  auto team = std::make_shared<Team>();
  Block* block = nullptr;
  unsigned size = (unsigned)blocks_of(cluster);
  for (unsigned rank = 0; rank < size; ++rank) {
    if (block) waiting.push_back(block);
    block = take_block();
    hold(block);
    Index within = index_of(rank, cluster);
    block->index = {first.x * cluster.x + within.x, first.y * cluster.y + within.y, first.z * cluster.z + within.z};
    begin_block(*block, scheduler, order_seed);
    join_team(*block, team);
    scheduler.block_begins();
    block->due = 0;
  }
  in_vain = stuck = 0;
  // The last block of a cluster is ahead of the others, or the first, or any.
  unsigned leader = order_seed == 1 ? 0 : order_seed ? (unsigned)(order_seed + number) % size : size - 1;
  if (leader == size - 1) return block;
  waiting.push_back(block);
  return take_waiting(waiting.size() - size + leader);
}

void Resident::hold(Block* block) {
  if (holder) keep_shared(holder->shared, blocks_of(cluster) > 1);
  holder = block;
}

// For the message of a timeout.
void Resident::tell_of_waiting() {
  if (told || waiting.size() < 2 || in_vain < 4 * waiting.size()) return;
  told = true;
  printf("%s waiting %zu %zu\n", plan.token, waiting.size(), most);
  if (fflush(stdout)) _exit(71);  // the kernel has closed it
}

}  // namespace cuhost
