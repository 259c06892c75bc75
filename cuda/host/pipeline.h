// cuda_pipeline.h: copies from global to shared memory that take effect when they are waited for.
#pragma once

#include "interface.h"

namespace cuda_device {

inline void __pipeline_memcpy_async(void* to, const void* from, size_t bytes, size_t zeros = 0) {
  cuhost::cuhost_copy_later(to, from, bytes, zeros);
}
inline void __pipeline_commit() { cuhost::cuhost_commit_copies(); }
inline void __pipeline_wait_prior(size_t but_latest) {
  cuhost::cuhost_finish_copies(but_latest);
}

}  // namespace cuda_device
