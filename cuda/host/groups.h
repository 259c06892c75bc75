// cooperative_groups.h and cooperative_groups/reduce.h: blocks, tiles of up to a warp, and active lanes.
#pragma once

#include "threads.h"

namespace cuhost {

// The value of another lane of the mask; a warp exchanges 8 bytes at a time.
template <class T>
inline T from_lane(unsigned mask, const T& value, int lane) {
  static_assert(sizeof(T) <= 32, "a group exchanges values of at most 32 bytes");
  uint64_t words[(sizeof(T) + 7) / 8] = {};
  __builtin_memcpy(words, &value, sizeof(T));
  for (uint64_t& word : words) word = cuhost_warp(mask, word, lane, warp_exchange);
  T result;
  __builtin_memcpy(&result, words, sizeof(T));
  return result;
}

inline int lane_of_rank(unsigned mask, unsigned rank) {
  for (; rank; --rank) mask &= mask - 1;
  return mask ? __builtin_ctz(mask) : 32;
}

// Lanes of a warp, ranked in ascending order.
struct Lanes {
  unsigned mask;
  unsigned long long thread_rank() const {
    return (unsigned)__builtin_popcount(mask & ((1u << cuhost_lane()) - 1));
  }
  unsigned long long size() const { return (unsigned)__builtin_popcount(mask); }
  unsigned long long num_threads() const { return size(); }
  void sync() const { cuhost_warp(mask, 0, 0, warp_sync); }
  template <class T>
  T shfl(T value, int rank) const {
    return from_lane(mask, value, lane_of_rank(mask, (unsigned)rank % (unsigned)size()));
  }
  template <class T>
  T shfl_up(T value, unsigned delta) const {
    unsigned rank = (unsigned)thread_rank();
    return shfl(value, (int)(rank < delta ? rank : rank - delta));
  }
  template <class T>
  T shfl_down(T value, unsigned delta) const {
    unsigned rank = (unsigned)thread_rank();
    return shfl(value, (int)(rank + delta < size() ? rank + delta : rank));
  }
  template <class T>
  T shfl_xor(T value, unsigned lanes) const {
    unsigned rank = (unsigned)thread_rank() ^ lanes;
    return shfl(value, (int)(rank < size() ? rank : thread_rank()));
  }
  // One bit for each rank.
  unsigned ballot(int predicate) const { return packed((unsigned)cuhost_warp(mask, predicate != 0, 0, warp_ballot)); }
  int any(int predicate) const { return ballot(predicate) != 0; }
  int all(int predicate) const { return ballot(!predicate) == 0; }
  template <class T>
  unsigned match_any(T value) const {
    return packed(cuda_device::__match_any_sync(mask, value));
  }
  template <class T>
  unsigned match_all(T value, int& predicate) const {
    return packed(cuda_device::__match_all_sync(mask, value, &predicate));
  }

 private:
  unsigned packed(unsigned lanes) const {
    unsigned result = 0, rank = 0;
    for (unsigned left = mask; left; left &= left - 1, ++rank)
      result |= (lanes & left & -left ? 1u : 0u) << rank;
    return result;
  }
};

inline unsigned tile_mask(unsigned size) {
  return (unsigned)((1ull << size) - 1) << (cuhost_lane() / (int)size * (int)size);
}

}  // namespace cuhost

namespace cuda_device {
namespace cooperative_groups {

struct thread_block {
  static void sync(int line = __builtin_LINE()) { cuhost::cuhost_barrier(line); }
  static unsigned thread_rank() {
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  }
  static unsigned size() { return blockDim.x * blockDim.y * blockDim.z; }
  static unsigned num_threads() { return size(); }
  static dim3 group_index() { return blockIdx; }
  static dim3 thread_index() { return threadIdx; }
  static dim3 group_dim() { return blockDim; }
  static dim3 dim_threads() { return blockDim; }
};
inline thread_block this_thread_block() { return {}; }

struct grid_group {
  static void sync(int line = __builtin_LINE()) { cuhost::cuhost_grid_barrier(line); }
  static bool is_valid() { return true; }
  static unsigned long long block_rank() {
    return blockIdx.x + (unsigned long long)gridDim.x * (blockIdx.y + (unsigned long long)gridDim.y * blockIdx.z);
  }
  static unsigned long long num_blocks() { return (unsigned long long)gridDim.x * gridDim.y * gridDim.z; }
  static unsigned long long thread_rank() {
    return block_rank() * thread_block::size() + thread_block::thread_rank();
  }
  static unsigned long long size() { return num_blocks() * thread_block::size(); }
  static unsigned long long num_threads() { return size(); }
  static dim3 block_index() { return blockIdx; }
  static dim3 dim_blocks() { return gridDim; }
  static dim3 group_dim() { return gridDim; }
};
inline grid_group this_grid() { return {}; }

// The blocks of a cluster; one block where there are no clusters.
struct cluster_group {
  struct arrival_token {};
  static arrival_token barrier_arrive() {
    cuhost::cuhost_cluster_arrive(true);
    return {};
  }
  static void barrier_wait() { cuhost::cuhost_cluster_wait(); }
  static void barrier_wait(arrival_token&&) { barrier_wait(); }
  static void sync() {
    barrier_arrive();
    barrier_wait();
  }
  static dim3 dim_blocks() {
    auto& dim = cuhost::cuhost_where.cluster_dim;
    return {dim.x, dim.y, dim.z};
  }
  static dim3 block_index() {
    dim3 dim = dim_blocks();
    return {blockIdx.x % dim.x, blockIdx.y % dim.y, blockIdx.z % dim.z};
  }
  static unsigned block_rank() {
    dim3 dim = dim_blocks(), at = block_index();
    return at.x + dim.x * (at.y + dim.y * at.z);
  }
  static unsigned num_blocks() {
    dim3 dim = dim_blocks();
    return dim.x * dim.y * dim.z;
  }
  static unsigned thread_rank() { return block_rank() * thread_block::size() + thread_block::thread_rank(); }
  static unsigned num_threads() { return num_blocks() * thread_block::size(); }
  static unsigned size() { return num_threads(); }
  template <class T>
  static T* map_shared_rank(T* at, int rank) {
    return (T*)cuhost::cuhost_map_shared_rank((const void*)at, (unsigned)rank);
  }
  static unsigned query_shared_rank(const void* at) { return cuhost::cuhost_shared_rank(at); }
};
inline cluster_group this_cluster() { return {}; }

struct coalesced_group : cuhost::Lanes {
  unsigned cuhost_rank = 0, cuhost_groups = 1;
  unsigned meta_group_rank() const { return cuhost_rank; }
  unsigned meta_group_size() const { return cuhost_groups; }
};
inline coalesced_group coalesced_threads(int line = __builtin_LINE()) {
  return {{__activemask(line)}};
}
// The lanes of a tile or of a coalesced group that have the same label.
template <class Label>
inline coalesced_group labeled_partition(const cuhost::Lanes& group, Label label) {
  static_assert(std::is_integral_v<Label> || std::is_pointer_v<Label>,
                "the label of labeled_partition must be an integer or a pointer");
  unsigned same = __match_any_sync(group.mask, label), first = same & -same;
  unsigned leaders = __ballot_sync(group.mask, first == 1u << cuhost::cuhost_lane());
  unsigned rank = (unsigned)__builtin_popcount(leaders & (first - 1));
  if (std::is_same_v<Label, bool> && same != group.mask) rank = (unsigned)(bool)label;
  return {{same}, rank, (unsigned)__builtin_popcount(leaders)};
}
inline coalesced_group binary_partition(const cuhost::Lanes& group, bool label) {
  return labeled_partition(group, label);
}

template <unsigned N, class Parent = void>
struct thread_block_tile : cuhost::Lanes {
  static_assert(N && N <= 32 && !(N & (N - 1)),
                "cannot run on the emulated GPU: a tile of other than 1, 2, 4, 8, 16 or 32 threads");
  template <class P>
  explicit thread_block_tile(const P&) : cuhost::Lanes{cuhost::tile_mask(N)} {}
  thread_block_tile(const thread_block_tile&) = default;
  template <class Other>
  thread_block_tile(const thread_block_tile<N, Other>& other) : cuhost::Lanes{other.mask} {}
  static unsigned thread_rank() { return (unsigned)cuhost::cuhost_lane() % N; }
  static constexpr unsigned size() { return N; }
  static constexpr unsigned num_threads() { return N; }
  static unsigned meta_group_rank() {
    if constexpr (cuda_device_is_tile<Parent>) return Parent::thread_rank() / N;
    else return thread_block::thread_rank() / N;
  }
  static unsigned meta_group_size() {
    if constexpr (cuda_device_is_tile<Parent>) return Parent::size() / N;
    else return (thread_block::size() + N - 1) / N;
  }
  template <class T>
  static constexpr bool cuda_device_is_tile = !std::is_void_v<T> && !std::is_same_v<T, thread_block>;
};
template <unsigned N, class Parent>
inline thread_block_tile<N, Parent> tiled_partition(const Parent& parent) {
  return thread_block_tile<N, Parent>(parent);
}

// A tile whose size is known only at run time, or any group that is passed as one: of a block, no lanes.
struct thread_group : cuhost::Lanes {
  thread_group(cuhost::Lanes lanes) : cuhost::Lanes(lanes) {}
  thread_group(const thread_block&) : cuhost::Lanes{0} {}
  unsigned long long meta_group_rank() const { return thread_block::thread_rank() / size(); }
  unsigned long long thread_rank() const { return mask ? Lanes::thread_rank() : thread_block::thread_rank(); }
  unsigned long long size() const { return mask ? Lanes::size() : thread_block::size(); }
  unsigned long long num_threads() const { return size(); }
  void sync(int line = __builtin_LINE()) const { mask ? Lanes::sync() : cuhost::cuhost_barrier(line); }
};
template <class Parent>
inline thread_group tiled_partition(const Parent&, unsigned size) {
  return cuhost::Lanes{cuhost::tile_mask(size)};
}

template <class G, class F, class... Arguments>
inline void invoke_one(const G& group, F&& function, Arguments&&... arguments) {
  if (!group.thread_rank()) function(static_cast<Arguments&&>(arguments)...);
}
template <class G, class F, class... Arguments>
inline auto invoke_one_broadcast(const G& group, F&& function, Arguments&&... arguments) {
  decltype(function(static_cast<Arguments&&>(arguments)...)) result{};
  if (!group.thread_rank()) result = function(static_cast<Arguments&&>(arguments)...);
  return group.shfl(result, 0);
}

template <class G>
inline void sync(const G& group) {
  group.sync();
}
inline void sync(const thread_block&, int line = __builtin_LINE()) { cuhost::cuhost_barrier(line); }

#define CUHOST_REDUCTION(name, expression)                                               \
  template <class T = void>                                                              \
  struct name {                                                                          \
    template <class V>                                                                   \
    V operator()(V a, V b) const {                                                       \
      return (V)(expression);                                                            \
    }                                                                                    \
  };
CUHOST_REDUCTION(plus, a + b)
CUHOST_REDUCTION(less, b < a ? b : a)
CUHOST_REDUCTION(greater, a < b ? b : a)
CUHOST_REDUCTION(bit_and, a & b)
CUHOST_REDUCTION(bit_or, a | b)
CUHOST_REDUCTION(bit_xor, a ^ b)
#undef CUHOST_REDUCTION
template <class G, class T, class Op>
inline T reduce(const G& group, T value, Op op) {
  T result = group.shfl(value, 0);
  for (unsigned rank = 1; rank < group.size(); ++rank) result = op(result, group.shfl(value, (int)rank));
  return result;
}

}  // namespace cooperative_groups
}  // namespace cuda_device
