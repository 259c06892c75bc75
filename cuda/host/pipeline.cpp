// Asynchronous copies, by the CUDA C++ Programming Guide's "Pipeline Primitives Interface".
#include <cstring>
#include <deque>
#include <vector>

#include "runtime.h"

namespace cuhost {

extern "C" decltype(cuhost_range) cuhost_range __attribute__((weak));

namespace {

struct Copy {
  void* to;
  const void* from;
  size_t bytes, zeros;
};

struct Copies {
  uint64_t block = 0;               // number of their block, from 1
  std::vector<std::vector<Copy>> batches;
  std::vector<Copy> open;           // not committed yet
};

std::deque<std::vector<Copies>> copies;  // of each thread of the blocks that have not ended

Copies& own() {
  Index thread = cuhost_where.thread, extent = cuhost_where.block_dim, block = cuhost_where.block;
  if (copies.size() <= running_slot()) copies.resize(running_slot() + 1);
  std::vector<Copies>& all = copies[running_slot()];
  if (all.empty()) all.resize(max_threads);
  Copies& mine = all[thread.x + extent.x * (thread.y + extent.y * thread.z)];
  uint64_t number = 1 + block.x + (uint64_t)cuhost_where.grid_dim.x *
                                      (block.y + (uint64_t)cuhost_where.grid_dim.y * block.z);
  if (mine.block != number) mine = Copies{number, {}, {}};
  return mine;
}

void report(const void* address, size_t bytes, bool write, bool checked) {
  if (checked && bytes) cuhost_range(address, bytes, write);
}

}  // namespace

extern "C" {

void cuhost_copy_later(void* to, const void* from, size_t bytes, size_t zeros, bool checked) {
  if ((bytes != 4 && bytes != 8 && bytes != 16) || zeros > bytes)
    fault("runtime", "%s copies %zu bytes asynchronously: only 4, 8 and 16 can be", here().c_str(),
          bytes);
  if (((uintptr_t)to | (uintptr_t)from) % bytes)
    fault("runtime", "misaligned address: %s copies to or from one that is not a multiple of %zu bytes",
          here().c_str(), bytes);
  report(from, bytes - zeros, false, checked);
  report(to, bytes, true, checked);
  poison(to, bytes);
  own().open.push_back({to, from, bytes, zeros});
}

void cuhost_commit_copies() {
  Copies& mine = own();
  mine.batches.push_back(std::move(mine.open));
  mine.open.clear();
}

void cuhost_finish_copies(size_t but_latest, bool checked) {
  std::vector<std::vector<Copy>>& batches = own().batches;
  size_t done = batches.size() > but_latest ? batches.size() - but_latest : 0;
  for (size_t k = 0; k < done; ++k) {
    for (const Copy& copy : batches[k]) {
      report(copy.to, copy.bytes, true, checked);
      memcpy(copy.to, copy.from, copy.bytes - copy.zeros);
      memset((char*)copy.to + copy.bytes - copy.zeros, 0, copy.zeros);
    }
  }
  batches.erase(batches.begin(), batches.begin() + (long)done);
}
}

}  // namespace cuhost
