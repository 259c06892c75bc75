// Asynchronous copies, by the CUDA C++ Programming Guide's "Pipeline Primitives Interface".
#include "copies.h"

#include <cstring>
#include <deque>
#include <vector>

#include "phases.h"

namespace cuhost {

extern "C" decltype(cuhost_range_of) cuhost_range_of __attribute__((weak));

namespace {

struct Copies {
  uint64_t block = 0;               // see running_block
  std::vector<std::vector<Copy>> batches;
  std::vector<Copy> open;           // not committed yet
};

std::deque<std::vector<Copies>> copies;  // of each thread of the blocks that have not ended

Copies& own_copies() {
  if (copies.size() <= running_slot()) copies.resize(running_slot() + 1);
  std::vector<Copies>& all = copies[running_slot()];
  if (all.empty()) all.resize(max_threads);
  Copies& mine = all[thread_stamp & 1023];
  if (mine.block != running_block()) mine = Copies{running_block(), {}, {}};
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

#define SITE __builtin_return_address(0)
extern "C" {

void cuhost_copy_later(void* to, const void* from, size_t bytes, size_t zeros) {
  if ((bytes != 4 && bytes != 8 && bytes != 16) || zeros > bytes)
    fault("runtime", "%s copies %zu bytes asynchronously: only 4, 8 and 16 can be", here().c_str(),
          bytes);
  own_copies().open.push_back(begin_copy({to, from, bytes, zeros}, bytes, SITE));
}

void cuhost_copy_any(void* to, const void* from, size_t bytes, size_t alignment) {
  own_copies().open.push_back(begin_copy({to, from, bytes, 0}, alignment, SITE));
}

void cuhost_commit_copies() {
  Copies& mine = own_copies();
  mine.batches.push_back(std::move(mine.open));
  mine.open.clear();
}

void cuhost_finish_copies(size_t but_latest) {
  std::vector<std::vector<Copy>>& batches = own_copies().batches;
  size_t done = batches.size() > but_latest ? batches.size() - but_latest : 0;
  for (size_t k = 0; k < done; ++k) {
    for (const Copy& copy : batches[k]) {
      report_access(copy.to, copy.bytes, true, nullptr);
      make_copy(copy);
    }
  }
  // What is still on its way to the same place may have arrived before.
  auto spoil = [&](const Copy& later) {
    for (size_t k = 0; k < done; ++k)
      for (const Copy& copy : batches[k])
        if ((char*)copy.to < (char*)later.to + later.bytes && (char*)later.to < (char*)copy.to + copy.bytes)
          return poison(later.to, later.bytes);
  };
  if (done) {
    for (size_t k = done; k < batches.size(); ++k)
      for (const Copy& later : batches[k]) spoil(later);
    for (const Copy& later : own_copies().open) spoil(later);
  }
  batches.erase(batches.begin(), batches.begin() + (long)done);
}
}

}  // namespace cuhost
