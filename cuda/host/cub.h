// CUB's collectives of a block and of a warp: reductions, scans, loads, stores and radix sorts.
//
// Those of a block go through their TempStorage, as on a card: using it again without a barrier is a race,
// and only the threads that CUB documents get a result.
#pragma once

#include <functional>

#include "groups.h"
#include "threads.h"

namespace cub {

struct Sum {
  template <class T, class U>
  auto operator()(const T& a, const U& b) const { return a + b; }
};
struct Difference {
  template <class T, class U>
  auto operator()(const T& a, const U& b) const { return a - b; }
};
struct Max {
  template <class T>
  T operator()(const T& a, const T& b) const { return a < b ? b : a; }
};
struct Min {
  template <class T>
  T operator()(const T& a, const T& b) const { return b < a ? b : a; }
};
struct Equality {
  template <class T, class U>
  bool operator()(const T& a, const U& b) const { return a == b; }
};
struct Inequality {
  template <class T, class U>
  bool operator()(const T& a, const U& b) const { return a != b; }
};
template <class K, class V>
struct KeyValuePair {
  K key;
  V value;
  KeyValuePair() = default;
  KeyValuePair(const K& key, const V& value) : key(key), value(value) {}
  bool operator!=(const KeyValuePair& b) const { return value != b.value || key != b.key; }
};
// Of equal values that of the lower key.
struct ArgMax {
  template <class P>
  P operator()(const P& a, const P& b) const {
    return a.value < b.value || (a.value == b.value && b.key < a.key) ? b : a;
  }
};
struct ArgMin {
  template <class P>
  P operator()(const P& a, const P& b) const {
    return b.value < a.value || (a.value == b.value && b.key < a.key) ? b : a;
  }
};
struct NullType {};

enum BlockReduceAlgorithm {
  BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY,
  BLOCK_REDUCE_RAKING,
  BLOCK_REDUCE_WARP_REDUCTIONS,
  BLOCK_REDUCE_WARP_REDUCTIONS_NONDETERMINISTIC
};
enum BlockScanAlgorithm { BLOCK_SCAN_RAKING, BLOCK_SCAN_RAKING_MEMOIZE, BLOCK_SCAN_WARP_SCANS };
enum BlockLoadAlgorithm {
  BLOCK_LOAD_DIRECT,
  BLOCK_LOAD_STRIPED,
  BLOCK_LOAD_VECTORIZE,
  BLOCK_LOAD_TRANSPOSE,
  BLOCK_LOAD_WARP_TRANSPOSE,
  BLOCK_LOAD_WARP_TRANSPOSE_TIMESLICED
};
enum BlockStoreAlgorithm {
  BLOCK_STORE_DIRECT,
  BLOCK_STORE_STRIPED,
  BLOCK_STORE_VECTORIZE,
  BLOCK_STORE_TRANSPOSE,
  BLOCK_STORE_WARP_TRANSPOSE,
  BLOCK_STORE_WARP_TRANSPOSE_TIMESLICED
};

inline int LaneId() { return ::cuhost::cuhost_lane(); }
inline int RowMajorTid(int, int, int) { return (int)::cuda_device::cooperative_groups::thread_block::thread_rank(); }

template <class T, int count>
struct cuhost_Space {
  alignas(T) unsigned char cuhost_bytes[sizeof(T) * count];
  T* items() { return (T*)cuhost_bytes; }
};
struct cuhost_NoSpace {
  unsigned char cuhost_unused;
};

// A block of x * y * z threads, of which this is one.
template <int x, int y, int z>
struct cuhost_Block {
  static constexpr int threads = x * y * z;
  static int rank() { return (int)::cuda_device::cooperative_groups::thread_block::thread_rank(); }
  static void sync() { ::cuhost::cuhost_barrier(0); }
  // The items of a storage, for which the block must be of this size.
  template <class Space>
  static auto items(Space& space) {
    if (::cuda_device::cooperative_groups::thread_block::size() != (unsigned)threads)
      ::cuhost::cuhost_trap("a collective of CUB for another number of threads than the block has");
    return space.items();
  }
};

template <class T, class Op>
inline T cuhost_fold(const T* items, int count, Op op) {
  if (count == 1) return items[0];
  return op(cuhost_fold(items, count - count / 2, op), cuhost_fold(items + (count - count / 2), count / 2, op));
}
template <class T, int count, class Op>
inline T cuhost_folded(const T (&items)[count], Op op) {
  T result = items[0];
  for (int k = 1; k < count; ++k) result = op(result, items[k]);
  return result;
}

template <class T, int x, BlockReduceAlgorithm = BLOCK_REDUCE_WARP_REDUCTIONS, int y = 1, int z = 1, int = 0>
class BlockReduce {
  using Block = cuhost_Block<x, y, z>;

 public:
  using TempStorage = cuhost_Space<T, Block::threads>;
  explicit BlockReduce(TempStorage& space) : items(Block::items(space)) {}
  BlockReduce(TempStorage& space, int) : items(Block::items(space)) {}

  // The first thread gets the result; others keep their own value, since theirs is undefined.
  template <class Op>
  T Reduce(T value, Op op, int valid = Block::threads) {
    items[Block::rank()] = value;
    Block::sync();
    return Block::rank() == 0 ? cuhost_fold(items, valid, op) : value;
  }
  template <int count, class Op>
  T Reduce(T (&values)[count], Op op) { return Reduce(cuhost_folded(values, op), op); }
  T Sum(T value, int valid = Block::threads) { return Reduce(value, cub::Sum(), valid); }
  template <int count>
  T Sum(T (&values)[count]) { return Reduce(values, cub::Sum()); }

 private:
  T* items;
};

template <class T, int x, BlockScanAlgorithm = BLOCK_SCAN_RAKING, int y = 1, int z = 1, int = 0>
class BlockScan {
  using Block = cuhost_Block<x, y, z>;
  T* items;

  // What all threads before this one have; the first has `value`. `all` becomes the result of all.
  template <class Op>
  T before(T value, Op op, T& all) {
    int rank = Block::rank();
    items[rank] = value;
    Block::sync();
    if (rank == 0)
      for (int k = 1; k < Block::threads; ++k) items[k] = op(items[k - 1], items[k]);
    Block::sync();
    all = items[Block::threads - 1];
    return items[rank ? rank - 1 : 0];
  }
  template <class Op, class Prefix>
  T prefixed(T all, Prefix& prefix, T value, bool first, Op op) {
    if (Block::rank() < 32) {
      T given = prefix(all);
      if (Block::rank() == 0) items[Block::threads] = given;
    }
    Block::sync();
    return first ? items[Block::threads] : op(items[Block::threads], value);
  }

 public:
  using TempStorage = cuhost_Space<T, Block::threads + 1>;
  explicit BlockScan(TempStorage& space) : items(Block::items(space)) {}
  BlockScan(TempStorage& space, int) : items(Block::items(space)) {}

  template <int count, class Op>
  void InclusiveScan(T (&in)[count], T (&out)[count], Op op, T& all) {
    T value = cuhost_folded(in, op), earlier = before(value, op, all);
    T sum = Block::rank() ? op(earlier, in[0]) : in[0];
    for (int k = 0; k < count; ++k) {
      if (k) sum = op(sum, in[k]);
      out[k] = sum;
    }
  }
  // Without an initial value the first result is undefined: here it is the first value.
  template <int count, class Op>
  void ExclusiveScan(T (&in)[count], T (&out)[count], Op op, T& all) {
    T value = cuhost_folded(in, op), sum = before(value, op, all);
    for (int k = 0; k < count; ++k) {
      T own = in[k];
      out[k] = sum;
      sum = Block::rank() || k ? op(sum, own) : own;
    }
  }
  template <int count, class Op>
  void ExclusiveScan(T (&in)[count], T (&out)[count], T initial, Op op, T& all) {
    T value = cuhost_folded(in, op), earlier = before(value, op, all);
    T sum = Block::rank() ? op(initial, earlier) : initial;
    for (int k = 0; k < count; ++k) {
      T own = in[k];
      out[k] = sum;
      sum = op(sum, own);
    }
  }
  template <int count, class Op, class Prefix, class = decltype(std::declval<Prefix&>()(std::declval<T>()))>
  void InclusiveScan(T (&in)[count], T (&out)[count], Op op, Prefix& prefix) {
    T all;
    InclusiveScan(in, out, op, all);
    for (T& each : out) each = prefixed_once(all, prefix, each, op, &each == out);
  }
  template <int count, class Op, class Prefix, class = decltype(std::declval<Prefix&>()(std::declval<T>()))>
  void ExclusiveScan(T (&in)[count], T (&out)[count], Op op, Prefix& prefix) {
    T all;
    ExclusiveScan(in, out, op, all);
    for (T& each : out) {
      bool first = Block::rank() == 0 && &each == out;
      each = &each == out ? prefixed(all, prefix, each, first, op) : op(items[Block::threads], each);
    }
  }

#define CUHOST_SCAN_FORMS(name)                                                            \
  template <int count, class Op>                                                           \
  void name##Scan(T (&in)[count], T (&out)[count], Op op) {                                \
    T all;                                                                                 \
    name##Scan(in, out, op, all);                                                          \
  }                                                                                        \
  template <class Op>                                                                      \
  void name##Scan(T in, T& out, Op op) {                                                   \
    T all;                                                                                 \
    name##Scan(in, out, op, all);                                                          \
  }                                                                                        \
  template <class Op, class Last>                                                          \
  void name##Scan(T in, T& out, Op op, Last& last) {                                       \
    T given[1] = {in}, result[1];                                                          \
    name##Scan(given, result, op, last);                                                   \
    out = result[0];                                                                       \
  }
  CUHOST_SCAN_FORMS(Inclusive)
  CUHOST_SCAN_FORMS(Exclusive)
#undef CUHOST_SCAN_FORMS
  template <int count, class Op>
  void ExclusiveScan(T (&in)[count], T (&out)[count], T initial, Op op) {
    T all;
    ExclusiveScan(in, out, initial, op, all);
  }
  template <class Op>
  void ExclusiveScan(T in, T& out, T initial, Op op, T& all) {
    T given[1] = {in}, result[1];
    ExclusiveScan(given, result, initial, op, all);
    out = result[0];
  }
  template <class Op>
  void ExclusiveScan(T in, T& out, T initial, Op op) {
    T all;
    ExclusiveScan(in, out, initial, op, all);
  }

  template <class In, class Out>
  void InclusiveSum(In&& in, Out& out) { InclusiveScan(in, out, Sum()); }
  template <class In, class Out, class Last>
  void InclusiveSum(In&& in, Out& out, Last& last) { InclusiveScan(in, out, Sum(), last); }
  template <class In, class Out>
  void ExclusiveSum(In&& in, Out& out) { ExclusiveScan(in, out, T(), Sum()); }
  template <class In, class Out>
  void ExclusiveSum(In&& in, Out& out, T& all) { ExclusiveScan(in, out, T(), Sum(), all); }
  template <class In, class Out, class Prefix, class = decltype(std::declval<Prefix&>()(std::declval<T>()))>
  void ExclusiveSum(In&& in, Out& out, Prefix& prefix) { ExclusiveScan(in, out, Sum(), prefix); }

 private:
  template <class Op, class Prefix>
  T prefixed_once(T all, Prefix& prefix, T value, Op op, bool once) {
    return once ? prefixed(all, prefix, value, false, op) : op(items[Block::threads], value);
  }
};

// The lanes of a logical warp, which all take part.
template <class T, int lanes>
struct cuhost_Warp {
  static_assert(lanes > 0 && lanes <= 32, "a logical warp has 1 to 32 threads");
  using TempStorage = cuhost_NoSpace;
  ::cuhost::Lanes group{lanes == 32 ? 0xffffffffu : ::cuhost::tile_mask(lanes)};
  int rank() const { return (int)group.thread_rank(); }
  template <class Op>
  T scanned(T value, Op op) const {
    for (int step = 1; step < lanes; step *= 2) {
      T other = group.shfl(value, rank() < step ? rank() : rank() - step);
      if (rank() >= step) value = op(other, value);
    }
    return value;
  }
};

template <class T, int lanes = 32, int = 0>
class WarpReduce : cuhost_Warp<T, lanes> {
  using Warp = cuhost_Warp<T, lanes>;

 public:
  using TempStorage = typename Warp::TempStorage;
  explicit WarpReduce(TempStorage&) {}

  // The first lane gets the result.
  template <class Op>
  T Reduce(T value, Op op, int valid = lanes) {
    for (int step = 1; step < lanes; step *= 2) {
      int other = this->rank() + step;
      T more = this->group.shfl(value, other < lanes ? other : this->rank());
      if (other < valid && this->rank() % (2 * step) == 0) value = op(value, more);
    }
    return value;
  }
  T Sum(T value, int valid = lanes) { return Reduce(value, cub::Sum(), valid); }
  T Max(T value, int valid = lanes) { return Reduce(value, cub::Max(), valid); }
  T Min(T value, int valid = lanes) { return Reduce(value, cub::Min(), valid); }
};

template <class T, int lanes = 32, int = 0>
class WarpScan : cuhost_Warp<T, lanes> {
  using Warp = cuhost_Warp<T, lanes>;

 public:
  using TempStorage = typename Warp::TempStorage;
  explicit WarpScan(TempStorage&) {}

  template <class Op>
  void InclusiveScan(T in, T& out, Op op) { out = this->scanned(in, op); }
  template <class Op>
  void InclusiveScan(T in, T& out, Op op, T& all) {
    out = this->scanned(in, op);
    all = this->group.shfl(out, lanes - 1);
  }
  template <class Op>
  void ExclusiveScan(T in, T& out, T initial, Op op, T& all) {
    T sum = this->scanned(in, op);
    T earlier = this->group.shfl(sum, this->rank() ? this->rank() - 1 : 0);
    all = this->group.shfl(sum, lanes - 1);
    out = this->rank() ? op(initial, earlier) : initial;
  }
  template <class Op>
  void ExclusiveScan(T in, T& out, T initial, Op op) {
    T all;
    ExclusiveScan(in, out, initial, op, all);
  }
  void InclusiveSum(T in, T& out) { InclusiveScan(in, out, Sum()); }
  void InclusiveSum(T in, T& out, T& all) { InclusiveScan(in, out, Sum(), all); }
  void ExclusiveSum(T in, T& out) { ExclusiveScan(in, out, T(), Sum()); }
  void ExclusiveSum(T in, T& out, T& all) { ExclusiveScan(in, out, T(), Sum(), all); }
  T Broadcast(T value, unsigned lane) { return this->group.shfl(value, (int)lane); }
};

// The place of a thread's item: blocked, unless the algorithm is a striped one.
template <class T, int x, int count, bool striped, int y, int z>
struct cuhost_Transfer {
  using Block = cuhost_Block<x, y, z>;
  using TempStorage = cuhost_NoSpace;
  static int place(int k) { return striped ? Block::rank() + k * Block::threads : Block::rank() * count + k; }
};

template <class T, int x, int count, BlockLoadAlgorithm algorithm = BLOCK_LOAD_DIRECT, int y = 1, int z = 1, int = 0>
class BlockLoad : cuhost_Transfer<T, x, count, algorithm == BLOCK_LOAD_STRIPED, y, z> {
  using Transfer = cuhost_Transfer<T, x, count, algorithm == BLOCK_LOAD_STRIPED, y, z>;

 public:
  using TempStorage = typename Transfer::TempStorage;
  BlockLoad() = default;
  explicit BlockLoad(TempStorage&) {}
  template <class From>
  void Load(From from, T (&items)[count]) {
    for (int k = 0; k < count; ++k) items[k] = from[Transfer::place(k)];
  }
  template <class From>
  void Load(From from, T (&items)[count], int valid) {
    for (int k = 0; k < count; ++k)
      if (Transfer::place(k) < valid) items[k] = from[Transfer::place(k)];
  }
  template <class From, class Default>
  void Load(From from, T (&items)[count], int valid, Default otherwise) {
    for (int k = 0; k < count; ++k) items[k] = Transfer::place(k) < valid ? T(from[Transfer::place(k)]) : T(otherwise);
  }
};

template <class T, int x, int count, BlockStoreAlgorithm algorithm = BLOCK_STORE_DIRECT, int y = 1, int z = 1, int = 0>
class BlockStore : cuhost_Transfer<T, x, count, algorithm == BLOCK_STORE_STRIPED, y, z> {
  using Transfer = cuhost_Transfer<T, x, count, algorithm == BLOCK_STORE_STRIPED, y, z>;

 public:
  using TempStorage = typename Transfer::TempStorage;
  BlockStore() = default;
  explicit BlockStore(TempStorage&) {}
  template <class To>
  void Store(To to, T (&items)[count], int valid = Transfer::Block::threads * count) {
    for (int k = 0; k < count; ++k)
      if (Transfer::place(k) < valid) to[Transfer::place(k)] = items[k];
  }
};

// Bits in the order of a key's values; zeros of both signs are equal.
template <class K>
inline unsigned long long cuhost_ordered(K key) {
  constexpr int width = 8 * sizeof(K);
  unsigned long long word = 0, top = 1ull << (width - 1);
  __builtin_memcpy(&word, &key, sizeof key);
  if constexpr (std::is_integral_v<K>) return std::is_signed_v<K> ? word ^ top : word;
  if (!(word & ~top)) word = 0;
  return word & top ? ~word & (top | (top - 1)) : word | top;
}

template <class K, int x, int count, class V = NullType, int = 4, bool = true, BlockScanAlgorithm = BLOCK_SCAN_WARP_SCANS>
class BlockRadixSort {
  using Block = cuhost_Block<x, 1, 1>;
  static constexpr int all = x * count, width = 8 * sizeof(K);
  struct Item {
    unsigned long long order;
    K key;
    V value;
  };
  Item* items;

  void sort(K (&keys)[count], V* values, int begin, int end, bool descending, bool striped) {
    for (int k = 0; k < count; ++k) {
      Item& item = items[Block::rank() * count + k];
      unsigned long long order = cuhost_ordered(keys[k]);
      item.order = (descending ? ~order : order) >> begin;
      if (end - begin < 64) item.order &= (1ull << (end - begin)) - 1;
      item.key = keys[k];
      if (values) item.value = values[k];
    }
    Block::sync();
    if (Block::rank() == 0) {  // merges runs of equal length, which keeps the order of equal keys
      Item *from = items, *to = items + all;
      for (int run = 1; run < all; run *= 2) {
        for (int first = 0; first < all; first += 2 * run) {
          int a = first, middle = first + run < all ? first + run : all, b = middle;
          int last = first + 2 * run < all ? first + 2 * run : all;
          for (int k = first; k < last; ++k)
            to[k] = b >= last || (a < middle && from[a].order <= from[b].order) ? from[a++] : from[b++];
        }
        Item* next = from;
        from = to, to = next;
      }
      if (from != items)
        for (int k = 0; k < all; ++k) items[k] = from[k];
    }
    Block::sync();
    for (int k = 0; k < count; ++k) {
      const Item& item = items[striped ? Block::rank() + k * x : Block::rank() * count + k];
      keys[k] = item.key;
      if (values) values[k] = item.value;
    }
  }

 public:
  using TempStorage = cuhost_Space<Item, 2 * all>;
  explicit BlockRadixSort(TempStorage& space) : items(Block::items(space)) {}

#define CUHOST_SORT(name, descending, striped)                                             \
  void name(K (&keys)[count], int begin = 0, int end = width) {                            \
    sort(keys, nullptr, begin, end, descending, striped);                                  \
  }                                                                                        \
  template <class W>                                                                       \
  void name(K (&keys)[count], W (&values)[count], int begin = 0, int end = width) {        \
    sort(keys, values, begin, end, descending, striped);                                   \
  }
  CUHOST_SORT(Sort, false, false)
  CUHOST_SORT(SortDescending, true, false)
  CUHOST_SORT(SortBlockedToStriped, false, true)
  CUHOST_SORT(SortDescendingBlockedToStriped, true, true)
#undef CUHOST_SORT
};

}  // namespace cub
