// Asynchronous copies, by the CUDA C++ Programming Guide's "Pipeline Primitives Interface".
#include "copies.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <vector>

#include "phases.h"

namespace cuhost {

extern "C" decltype(cuhost_range_of) cuhost_range_of __attribute__((weak));

// Copies are counted in the order in which the thread begins them.
struct ThreadCopies {
  uint64_t block = 0;              // see running_block
  std::vector<Copy> pending;       // those after the first `made`
  uint64_t made = 0;               // have taken effect
  uint64_t shown = 0;              // have an mbarrier that shows it
  std::vector<uint64_t> groups;    // how many had begun when each group was committed
};

namespace {


std::deque<std::vector<ThreadCopies>> copies;  // of each thread of the blocks that have not ended

ThreadCopies& own_copies() {
  if (copies.size() <= running_slot()) copies.resize(running_slot() + 1);
  std::vector<ThreadCopies>& all = copies[running_slot()];
  if (all.empty()) all.resize(max_threads);
  ThreadCopies& mine = all[thread_stamp & 1023];
  if (mine.block != running_block()) {
    mine = {};
    mine.block = running_block();
  }
  return mine;
}

}  // namespace

void report_access(const void* address, size_t bytes, bool write, const void* site) {
  if (bytes && runs_checked()) cuhost_range_of(address, bytes, write, site);
}

Copy begin_copy(const Copy& copy, size_t alignment, const void* site) {
  if (((uintptr_t)copy.to | (uintptr_t)copy.from) % alignment)
    fault("runtime", "misaligned address: %s copies to or from one that is not a multiple of %zu bytes",
          here().c_str(), alignment);
  report_access(copy.from, copy.bytes - copy.zeros, false, site);
  report_access(copy.to, copy.bytes, true, (const char*)site + 1);
  poison(copy.to, copy.bytes);
  return copy;
}

void make_copy(const Copy& copy) {
  memcpy(copy.to, copy.from, copy.bytes - copy.zeros);
  memset((char*)copy.to + copy.bytes - copy.zeros, 0, copy.zeros);
}

StartedCopies started_copies() {
  ThreadCopies& mine = own_copies();
  mine.shown = mine.made + mine.pending.size();
  return {&mine, mine.shown};
}

// The thread's earliest copies take effect. What is still on its way to the same place may have arrived before.
static void make_first(ThreadCopies& thread, size_t count, bool reports) {
  auto first = thread.pending.begin(), end = first + (long)count;
  for (auto copy = first; copy != end; ++copy) {
    if (reports) report_access(copy->to, copy->bytes, true, nullptr);
    make_copy(*copy);
  }
  for (auto later = end; later != thread.pending.end(); ++later) {
    auto overlaps = [&](const Copy& copy) {
      return (char*)copy.to < (char*)later->to + later->bytes && (char*)later->to < (char*)copy.to + copy.bytes;
    };
    if (std::any_of(first, end, overlaps)) poison(later->to, later->bytes);
  }
  thread.pending.erase(first, end);
  thread.made += count;
}

void make_copies(const StartedCopies& started) {
  ThreadCopies& thread = *started.thread;
  if (started.count > thread.made) make_first(thread, started.count - thread.made, false);
}

#define SITE __builtin_return_address(0)
extern "C" {

void cuhost_copy_later(void* to, const void* from, size_t bytes, size_t zeros) {
  if ((bytes != 4 && bytes != 8 && bytes != 16) || zeros > bytes)
    fault("runtime", "%s copies %zu bytes asynchronously: only 4, 8 and 16 can be", here().c_str(),
          bytes);
  own_copies().pending.push_back(begin_copy({to, from, bytes, zeros}, bytes, SITE));
}

void cuhost_copy_any(void* to, const void* from, size_t bytes, size_t alignment) {
  own_copies().pending.push_back(begin_copy({to, from, bytes, 0}, alignment, SITE));
}

void cuhost_commit_copies() {
  ThreadCopies& mine = own_copies();
  mine.groups.push_back(mine.made + mine.pending.size());
}

void cuhost_finish_copies(size_t but_latest) {
  ThreadCopies& mine = own_copies();
  size_t done = mine.groups.size() > but_latest ? mine.groups.size() - but_latest : 0;
  if (!done) return;
  // Those that an mbarrier shows were written, for others, before it was arrived at.
  make_copies({&mine, std::min(mine.groups[done - 1], mine.shown)});
  size_t count = mine.groups[done - 1] > mine.made ? (size_t)(mine.groups[done - 1] - mine.made) : 0;
  make_first(mine, count, true);
  mine.groups.erase(mine.groups.begin(), mine.groups.begin() + (long)done);
}
}

}  // namespace cuhost
