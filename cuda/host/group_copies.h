// cooperative_groups/memcpy_async.h: copies by a group, each of them one batch of cuda_pipeline.h's.
#pragma once

#include "groups.h"
#include "phases.h"
#include "pieces.h"

namespace cuda_device {
namespace cooperative_groups {

template <class G, class T, class Size>
inline void memcpy_async(const G& group, T* to, const T* from, const Size& bytes) {
  cuhost::share_copy(group, to, from, bytes, cuhost::cuhost_copy_any);
  cuhost::cuhost_commit_copies();
}
// Sizes in elements; the smaller one counts.
template <class G, class T, class To, class From>
inline void memcpy_async(const G& group, T* to, const To& room, const T* from, const From& there) {
  size_t count = (size_t)there < (size_t)room ? (size_t)there : (size_t)room;
  memcpy_async(group, to, from, count * sizeof(T));
}

template <unsigned but_latest, class G>
inline void wait_prior(const G& group, int line = __builtin_LINE()) {
  cuhost::cuhost_finish_copies(but_latest);
  if constexpr (std::is_same_v<G, thread_block>) cuhost::cuhost_barrier(line);
  else group.sync();
}
template <class G>
inline void wait(const G& group, int line = __builtin_LINE()) {
  wait_prior<0>(group, line);
}

}  // namespace cooperative_groups
}  // namespace cuda_device
