// Copies that take effect some time after they began.
#pragma once

#include "runtime.h"

namespace cuhost {

struct Copy {
  void* to;
  const void* from;
  size_t bytes, zeros;  // the last of the bytes are filled with zeros
};

// Poisons the destination; the pointers must be multiples of the alignment. `site` is the call.
Copy begin_copy(const Copy& copy, size_t alignment, const void* site);
void make_copy(const Copy& copy);

struct ThreadCopies;
// The copies that a thread of the block has begun with cp.async, up to a count of them.
struct StartedCopies {
  ThreadCopies* thread;
  uint64_t count;
};
// Those of the running thread, for an mbarrier that shows their end.
StartedCopies started_copies();
void make_copies(const StartedCopies& started);  // those that have not taken effect yet

// Copies that take effect for those that wait for the barrier's running phase; the bytes arrive there.
// See phases.cpp.
void arrive_with_copies(uint64_t* word, const std::vector<Copy>& copies, long long bytes);
// The same, of copies in bulk, which begin now: see bulk_copies.cpp.
void arrive_with_loads(uint64_t* word, const std::vector<Copy>& copies, long long bytes);
// To the memory checker; see cuhost_range_of.
void report_access(const void* address, size_t bytes, bool write, const void* site);

}  // namespace cuhost
