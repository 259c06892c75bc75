// cooperative_groups/scan.h: prefix sums and the like over the lanes of a group.
#pragma once

#include "groups.h"

namespace cuda_device {
namespace cooperative_groups {

template <class G, class T, class Op>
inline T inclusive_scan(const G& group, T value, Op op) {
  T result = group.shfl(value, 0);
  for (unsigned rank = 1; rank < group.size(); ++rank) {
    T next = group.shfl(value, (int)rank);
    if (rank <= group.thread_rank()) result = op(result, next);
  }
  return result;
}
template <class G, class T>
inline T inclusive_scan(const G& group, T value) {
  return inclusive_scan(group, value, plus<T>());
}

// The first lane gets T().
template <class G, class T, class Op>
inline T exclusive_scan(const G& group, T value, Op op) {
  T before = group.shfl_up(inclusive_scan(group, value, op), 1);
  return group.thread_rank() ? before : T();
}
template <class G, class T>
inline T exclusive_scan(const G& group, T value) {
  return exclusive_scan(group, value, plus<T>());
}

}  // namespace cooperative_groups
}  // namespace cuda_device
