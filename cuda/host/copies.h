// Copies that take effect some time after they began.
#pragma once

#include "runtime.h"

namespace cuhost {

struct Copy {
  void* to;
  const void* from;
  size_t bytes, zeros;  // the last of the bytes are filled with zeros
};

// Poisons the destination; the pointers must be multiples of the alignment.
Copy begin_copy(const Copy& copy, size_t alignment);
void make_copy(const Copy& copy);
void report_access(const void* address, size_t bytes, bool write);  // to the memory checker

}  // namespace cuhost
