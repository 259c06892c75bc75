// The race detector and memory checker: what code compiled with -fsanitize=thread calls.
//
// The compiler's instrumentation is used without its run-time library. For each word of shared
// memory and of the tensors, a cell holds the last write and two reads, each as the thread's stamp
// (see runtime.h). Two accesses by different threads, at least one of them a write, race unless a
// barrier of their block or warp lies between them. Blocks are never ordered.
#include <cstdio>
#include <cstring>
#include <sys/mman.h>
#include <vector>

#include "runtime.h"
#include "warps.h"

namespace cuhost {
namespace {

struct Cell {
  uint64_t write, read, other_read;  // stamps; 0 is none
};

// Cells cover four bytes each until a narrower access occurs, and one byte from then on.
struct Shadow {
  uintptr_t low = 0;
  size_t bytes = 0;
  int shift = 2;
  Cell* cells = nullptr;
  uint32_t* read_by = nullptr;  // the last block that read a sector of global memory
  bool global = false, read_only = false;

  template <class T>
  static T* allocate(size_t count) {
    void* memory = mmap(nullptr, count * sizeof(T) + 1, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) fault("runtime", "no memory for the race detector");
    return (T*)memory;
  }
  size_t sectors() const { return (bytes >> 5) + 2; }
  void cover(uintptr_t start, size_t length, bool is_global) {
    if (cells) munmap(cells, ((bytes >> shift) + 2) * sizeof(Cell) + 1);
    if (read_by) munmap(read_by, sectors() * sizeof(uint32_t) + 1);
    low = start;
    bytes = length;
    shift = 2;
    global = is_global;
    cells = allocate<Cell>((length >> shift) + 2);
    read_by = is_global ? allocate<uint32_t>(sectors()) : nullptr;
  }
  void refine() {
    Cell* finer = allocate<Cell>(bytes + 2);
    for (size_t k = 0; k < (bytes >> 2) + 1; ++k) {
      const Cell& cell = cells[k];
      if (!(cell.write | cell.read)) continue;
      for (size_t b = 4 * k; b < 4 * k + 4 && b < bytes; ++b) finer[b] = cell;
    }
    munmap(cells, ((bytes >> 2) + 2) * sizeof(Cell) + 1);
    cells = finer;
    shift = 0;
  }
};

Shadow dynamics;
std::vector<Shadow> statics;  // of shared variables
Shadow* recent = &dynamics;   // the one of these accessed last
std::vector<Shadow> tensors;
Traffic traffic;
uint32_t launch_first, block_first, last_load;  // barrier intervals
bool fenced;                         // from then on, blocks may be ordered by fences
struct Begin {
  uint32_t interval;
  Index block;
};
std::vector<Begin> begins;
const Launch* launch;

// A write over another thread's is judged once the value has been stored: writing the value that is
// already there is not a hazard.
struct {
  bool open;
  uintptr_t at;
  unsigned bytes;
  uint64_t earlier, stamp;
  const Shadow* shadow;
  unsigned char before[16];
} overwrite;

std::string thread_of(uint64_t stamp) {
  Index index = index_of((unsigned)(stamp & 1023), launch->block);
  char text[64];
  snprintf(text, sizeof text, "(%u,%u,%u)", index.x, index.y, index.z);
  return text;
}

std::string block_of(uint64_t stamp) {
  uint32_t interval = (uint32_t)(stamp >> 32);
  Index block{};
  for (const Begin& begin : begins) {
    if (begin.interval <= interval) block = begin.block;
  }
  char text[64];
  snprintf(text, sizeof text, "(%u,%u,%u)", block.x, block.y, block.z);
  return text;
}

std::string element_of(const Shadow& shadow, uintptr_t at) {
  char text[300];
  if (shadow.global) {
    for (const Tensor& tensor : plan.tensors) {
      size_t offset = at - (uintptr_t)tensor.payload;
      if (offset < tensor.bytes) {
        snprintf(text, sizeof text, "%s[%zu]", tensor.name.c_str(), offset / tensor.element_bytes);
        return text;
      }
    }
  }
  if (const Variable* variable = beside_variable(at)) {
    size_t offset = at - (uintptr_t)variable->begin;
    snprintf(text, sizeof text, "%s[%zu]", variable->name, offset / variable->element_bytes);
    return text;
  }
  snprintf(text, sizeof text, "byte %zu of the dynamic shared memory", (size_t)(at - dynamics.low));
  return text;
}

[[noreturn]] void race(const Shadow& shadow, uintptr_t at, uint64_t first, const char* first_verb,
                       uint64_t second, const char* second_verb) {
  std::string element = element_of(shadow, at), one = thread_of(first), two = thread_of(second);
  const char* memory = shadow.global ? "global" : "shared";
  if ((uint32_t)(first >> 32) < block_first)
    fault("correctness",
          "race on global memory: thread %s of block %s %s and thread %s of block %s of %s %s %s, "
          "and nothing orders blocks",
          one.c_str(), block_of(first).c_str(), first_verb, two.c_str(), block_of(second).c_str(),
          running_kernel, second_verb, element.c_str());
  fault("correctness",
        "race on %s memory: threads %s and %s of block %s of %s access %s, the first %s and the "
        "second %s, without a barrier between",
        memory, one.c_str(), two.c_str(), block_of(second).c_str(), running_kernel,
        element.c_str(), first_verb, second_verb);
}

void settle() {
  overwrite.open = false;
  if (memcmp((const void*)overwrite.at, overwrite.before, overwrite.bytes))
    race(*overwrite.shadow, overwrite.at, overwrite.earlier, "writes", overwrite.stamp,
         "writes another value");
}

// Whether an earlier access, given by its stamp, may still be in progress.
inline bool unordered(uint64_t earlier, uint64_t now, const Shadow& shadow) {
  uint64_t difference = earlier ^ now;
  if (difference >> 32) {
    uint32_t interval = (uint32_t)(earlier >> 32);
    return shadow.global && !fenced && interval >= launch_first && interval < block_first;
  }
  if (!(difference & 1023)) return false;              // the same thread
  bool same_warp = !(difference & 992);                // 1023 - 31
  return !(same_warp && (difference >> 10 & 0x3fffff));  // a warp synchronization lies between
}

template <bool write>
inline void touch(const Shadow& shadow, uintptr_t at, unsigned bytes) {
  const uint64_t now = thread_stamp;
  size_t first = (at - shadow.low) >> shadow.shift;
  size_t last = (at + bytes - 1 - shadow.low) >> shadow.shift;
  for (size_t k = first; k <= last; ++k) {
    Cell& cell = shadow.cells[k];
    if (write) {
      if (cell.read != now && unordered(cell.read, now, shadow))
        race(shadow, shadow.low + (k << shadow.shift), cell.read, "reads", now, "writes");
      if (unordered(cell.other_read, now, shadow))
        race(shadow, shadow.low + (k << shadow.shift), cell.other_read, "reads", now, "writes");
      if (cell.write != now && !overwrite.open && unordered(cell.write, now, shadow)) {
        overwrite.open = true;
        overwrite.at = at;
        overwrite.bytes = bytes > 16 ? 16 : bytes;
        overwrite.earlier = cell.write;
        overwrite.stamp = now;
        overwrite.shadow = &shadow;
        memcpy(overwrite.before, (const void*)at, overwrite.bytes);
      }
      cell.write = now;
    } else {
      if (cell.write != now && unordered(cell.write, now, shadow))
        race(shadow, shadow.low + (k << shadow.shift), cell.write, "writes", now, "reads");
      if (cell.read == now) continue;
      // The second read kept is one by another warp if there is any: then every later writer in
      // the interval finds a reader outside its own warp.
      uint64_t kept = cell.other_read, latest = cell.read;
      bool keep = !((kept ^ now) >> 32) && ((kept ^ now) & 992);
      if (!keep && ((latest ^ now) & 1023)) cell.other_read = latest;
      cell.read = now;
    }
  }
}

[[noreturn]] void outside(uintptr_t at, bool write) {
  std::string what = describe_address((const void*)at, write ? "writes" : "reads");
  if (what.empty()) {
    char text[80];
    snprintf(text, sizeof text, "%s address %p, outside every tensor", write ? "writes" : "reads",
             (void*)at);
    what = text;
  }
  fault("correctness", "%s %s", here().c_str(), what.c_str());
}

extern "C" char __executable_start, end;

bool in_program(uintptr_t at) {
  return at >= (uintptr_t)&__executable_start && at < (uintptr_t)&end;
}

// The shared variable or dynamic shared memory that contains an address.
Shadow* shared_at(uintptr_t at) {
  if (at - dynamics.low < dynamics.bytes) return &dynamics;
  if (!in_program(at)) return nullptr;
  for (Shadow& shadow : statics) {
    if (at - shadow.low < shadow.bytes) return &shadow;
  }
  return nullptr;
}

// Nothing beside a variable may be accessed. Everything else in the program is a constant, a
// variable unknown to the translator, or an argument.
void program_access(uintptr_t at, unsigned bytes, bool write) {
  const Variable* variable = beside_variable(at);
  if (!variable) return;
  if (!variable->contains(at)) outside(at, write);
  if (!variable->contains(at + bytes - 1)) outside(at + bytes - 1, write);
}

template <bool write>
void global_access(uintptr_t at, unsigned bytes, const void* site) {
  for (Shadow& shadow : tensors) {
    size_t offset = at - shadow.low;
    if (offset >= shadow.bytes) continue;
    if (offset + bytes > shadow.bytes) outside(at + bytes - 1, write);
    (write ? traffic.global_written : traffic.global_read) += bytes;
    warps_access(write ? global_store : global_load, at, bytes, site);
    if (!write) {
      uint32_t& reader = shadow.read_by[offset >> 5];
      traffic.distinct_sectors += reader != block_first;
      reader = block_first;
      traffic.load_intervals += last_load != barrier_interval;
      last_load = barrier_interval;
    }
    if (shadow.read_only && !write) return;  // cannot race
    if (shadow.read_only) outside(at, true);
    if (shadow.shift && ((at | bytes) & 3)) shadow.refine();
    touch<write>(shadow, at, bytes);
    return;
  }
  if (in_program(at)) return program_access(at, bytes, write);
  for (const Launch& each : plan.launches) {
    uintptr_t low = (uintptr_t)each.arguments.data();
    if (at - low < each.arguments.size() * sizeof(Argument)) return;
  }
  outside(at, write);
}

template <bool write>
inline void access(const void* address, unsigned bytes, const void* site) {
  if (__builtin_expect(overwrite.open, 0)) settle();
  ++traffic.accesses;
  uintptr_t at = (uintptr_t)address;
  Shadow* shadow = recent;
  if (at - shadow->low >= shadow->bytes) {
    if (at - fiber_low < fiber_bytes) return;
    shadow = shared_at(at);
    if (!shadow) return global_access<write>(at, bytes, site);
    recent = shadow;
  }
  if (at - shadow->low + bytes > shadow->bytes) outside(at + bytes - 1, write);
  (write ? traffic.shared_written : traffic.shared_read) += bytes;
  warps_access(write ? shared_store : shared_load, at, bytes, site);
  if (__builtin_expect(shadow->shift && ((at | bytes) & 3), 0)) shadow->refine();
  touch<write>(*shadow, at, bytes);
}

void launch_begins(const Launch& now) {
  launch = &now;
  launch_first = barrier_interval + 1;
  traffic = {};
  fenced = false;
  begins.clear();
  warps_launch_begins((int)(now.block.x * now.block.y * now.block.z + 31) / 32);
  const std::vector<Variable>& variables = variables_of(checked_build);
  statics.resize(variables.size());
  for (size_t k = 0; k < variables.size(); ++k) {
    if (variables[k].kernel) statics[k].cover((uintptr_t)variables[k].begin, variables[k].bytes, false);
  }
  dynamics.cover((uintptr_t)dynamic_shared, dynamic_shared_bytes, false);
  tensors.resize(plan.tensors.size());
  for (size_t k = 0; k < tensors.size(); ++k) {
    tensors[k].cover((uintptr_t)plan.tensors[k].payload, plan.tensors[k].bytes, true);
    tensors[k].read_only = !plan.tensors[k].writable;
  }
}

void block_begins() {
  block_first = barrier_interval;
  begins.push_back({barrier_interval, cuhost_where.block});
  warps_block_begins();
}

void block_ends() {
  if (overwrite.open) settle();
  check_shared({});  // accesses beside static variables have been caught already
}

Traffic traffic_now() { return traffic; }

}  // namespace

extern "C" {

extern const Hooks cuhost_hooks;
const Hooks cuhost_hooks = {launch_begins, block_begins, block_ends, traffic_now, warps_tally};

void cuhost_fence() { fenced = true; }

// Atomics do not race with one another, but a plain write by another thread races with an atomic.
// An atomic counts as a store: the memory system itself reads the old value.
void cuhost_atomic(const void* address, unsigned bytes) {
  if (overwrite.open) settle();
  uintptr_t at = (uintptr_t)address;
  const void* site = __builtin_return_address(0);
  if (const Shadow* shadow = shared_at(at)) {
    traffic.shared_written += bytes;
    warps_access(shared_store, at, bytes, site);
    const Cell& cell = shadow->cells[(at - shadow->low) >> shadow->shift];
    if (unordered(cell.write, thread_stamp, *shadow))
      race(*shadow, at, cell.write, "writes", thread_stamp, "updates it atomically");
    return;
  }
  for (const Shadow& shadow : tensors) {
    if (at - shadow.low >= shadow.bytes) continue;
    if (shadow.read_only) outside(at, true);
    traffic.global_written += bytes;
    warps_access(global_store, at, bytes, site);
    return;
  }
  if (at - fiber_low >= fiber_bytes) global_access<true>(at, bytes, site);
}

void cuhost_range(const void* address, size_t bytes, bool write) {
  const char* at = (const char*)address;
  const void* site = __builtin_return_address(0);
  while (bytes) {
    unsigned step = bytes >= 4 && !((uintptr_t)at & 3) ? 4 : 1;
    write ? access<true>(at, step, site) : access<false>(at, step, site);
    at += step;
    bytes -= step;
  }
}

#define SITE __builtin_return_address(0)
#define HOOKS(n)                                                                  \
  void __tsan_read##n(void* p) { access<false>(p, n, SITE); }                     \
  void __tsan_write##n(void* p) { access<true>(p, n, SITE); }                     \
  void __tsan_unaligned_read##n(void* p) { access<false>(p, n, SITE); }           \
  void __tsan_unaligned_write##n(void* p) { access<true>(p, n, SITE); }           \
  void __tsan_volatile_read##n(void* p) { access<false>(p, n, SITE); }            \
  void __tsan_volatile_write##n(void* p) { access<true>(p, n, SITE); }            \
  void __tsan_unaligned_volatile_read##n(void* p) { access<false>(p, n, SITE); }  \
  void __tsan_unaligned_volatile_write##n(void* p) { access<true>(p, n, SITE); }  \
  void __tsan_read_write##n(void* p) {                                            \
    access<false>(p, n, SITE);                                                    \
    access<true>(p, n, SITE);                                                     \
  }                                                                               \
  void __tsan_unaligned_read_write##n(void* p) {                                  \
    access<false>(p, n, SITE);                                                    \
    access<true>(p, n, SITE);                                                     \
  }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
#undef HOOKS
#undef SITE

// Called by -fsanitize=alignment: a GPU accepts no access to an address that is not a multiple of
// its type's alignment. The layout is that of GCC's and clang's "type_mismatch_v1".
struct Misaligned {
  const char* file;
  uint32_t line, column;
  const void* type;
  unsigned char log_alignment, kind;
};
[[noreturn]] void __ubsan_handle_type_mismatch_v1_abort(const Misaligned* what, uintptr_t) {
  fault("runtime", "misaligned address: %s %s at one that is not a multiple of %d bytes",
        here().c_str(), what->kind == 1 ? "writes" : "reads", 1 << what->log_alignment);
}

void __tsan_read_range(void* p, size_t bytes) { cuhost_range(p, bytes, false); }
void __tsan_write_range(void* p, size_t bytes) { cuhost_range(p, bytes, true); }
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() {}
// Called by clang's code instead of the C functions.
void* __tsan_memcpy(void* to, const void* from, size_t bytes) {
  cuhost_range(from, bytes, false);
  cuhost_range(to, bytes, true);
  return memcpy(to, from, bytes);
}
void* __tsan_memset(void* to, int value, size_t bytes) {
  cuhost_range(to, bytes, true);
  return memset(to, value, bytes);
}
void* __tsan_memmove(void* to, const void* from, size_t bytes) {
  cuhost_range(from, bytes, false);
  cuhost_range(to, bytes, true);
  return memmove(to, from, bytes);
}
}

}  // namespace cuhost
