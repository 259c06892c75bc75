// Scopes, and atomics that have one. Those of a block are none among blocks.
#pragma once

#include "threads.h"

namespace cuda {

enum thread_scope { thread_scope_system, thread_scope_device, thread_scope_block, thread_scope_thread };

}  // namespace cuda

namespace cuhost {

inline void of_block(const void* address) {
#if defined(CUHOST_CHECKED)
  cuhost_atomic_of_block(address);
#else
  (void)address;
#endif
}

}  // namespace cuhost

namespace cuda_device {

#define CUHOST_SCOPES(name)                                  \
  template <class T, class... V>                             \
  inline T name##_block(T* address, V... values) {           \
    cuhost::of_block(address);                               \
    return name(address, values...);                         \
  }                                                          \
  template <class T, class... V>                             \
  inline T name##_system(T* address, V... values) {          \
    return name(address, values...);                         \
  }
CUHOST_SCOPES(atomicAdd)
CUHOST_SCOPES(atomicSub)
CUHOST_SCOPES(atomicMin)
CUHOST_SCOPES(atomicMax)
CUHOST_SCOPES(atomicInc)
CUHOST_SCOPES(atomicDec)
CUHOST_SCOPES(atomicAnd)
CUHOST_SCOPES(atomicOr)
CUHOST_SCOPES(atomicXor)
CUHOST_SCOPES(atomicExch)
CUHOST_SCOPES(atomicCAS)
#undef CUHOST_SCOPES

}  // namespace cuda_device
