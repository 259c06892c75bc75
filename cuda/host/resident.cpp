#include "resident.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <unistd.h>

namespace cuhost {
namespace {

std::vector<std::unique_ptr<Block>> allocated;
std::vector<Block*> unused;
constexpr uint64_t longest_pause = 1024;

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
  most = std::max<size_t>(most, 1);
}

Resident::Step Resident::run_one(Blocks& blocks, uint64_t order_seed) {
  Block* block = nullptr;
  if (!waiting.empty() && waiting.front()->due <= ended_blocks) block = first_waiting();
  if (!block && waiting.size() < most) block = begun(blocks, order_seed);
  if (!block && !waiting.empty()) block = first_waiting();
  if (!block) return nothing_left;
  bool has_ended = proceed(*block);
  check_shared(scheduler.checked);  // the check catches accesses beside static variables itself
  if (has_ended) {
    ++ended_blocks;
    in_vain = stuck = 0;
    holder = nullptr;
    unused.push_back(block);
    return ended;
  }
  given_way = true;
  ++in_vain;
  stuck = block->stuck ? stuck + 1 : 0;
  if (stuck > waiting.size()) deadlocked(waiting.size() + 1);
  block->due = ended_blocks + block->pause;
  block->pause = std::min<uint64_t>(2 * block->pause, longest_pause);
  waiting.push_back(block);
  tell_of_waiting();
  return gave_way;
}

Block* Resident::first_waiting() {
  Block* block = waiting.front();
  waiting.pop_front();
  if (holder == block) return block;
  hold(block);
  restore_shared(block->shared);
  if (scheduler.checked) cuhost_hooks.block_resumes(block->slot);
  return block;
}

Block* Resident::begun(Blocks& blocks, uint64_t order_seed) {
  unsigned number;
  if (!(waiting.empty() ? blocks.next(number) : blocks.first(number))) return nullptr;
  Block* block = take_block();
  hold(block);
  block->index = index_of(number, scheduler.launch->grid);
  begin_block(*block, scheduler, order_seed);
  scheduler.block_begins();
  in_vain = stuck = 0;
  return block;
}

void Resident::hold(Block* block) {
  if (holder) keep_shared(holder->shared);
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
