// The memory checker: what code compiled with -fsanitize=thread calls.
//
// The compiler's instrumentation is used without its run-time library. Each access must lie within a
// tensor or variable, and must not race (see races.h).
#include <cstdio>
#include <cstring>
#include <vector>

#include "comparisons.h"
#include "interruptions.h"
#include "races.h"
#include "warps.h"

namespace cuhost {
namespace {

Traffic traffic;
uint32_t last_load;                  // barrier interval
std::vector<uint32_t> last_load_of;  // each block, by its slot

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

// Nothing beside a variable may be accessed. Everything else in the program is a constant, a
// variable unknown to the translator, or an argument.
void unknown_access(uintptr_t at, unsigned bytes, bool write) {
  if (in_program(at)) {
    const Variable* variable = beside_variable(at);
    if (variable && !variable->contains(at)) outside(at, write);
    if (variable && !variable->contains(at + bytes - 1)) outside(at + bytes - 1, write);
    return;
  }
  if (in_heap(at)) {
    if (heap_holds(at, bytes)) return;
    fault("correctness", "%s %s memory beside what malloc or new gave it, or after it was freed",
          here().c_str(), write ? "writes" : "reads");
  }
  for (const Launch& each : plan.launches) {
    uintptr_t low = (uintptr_t)each.arguments.data();
    if (at - low < each.arguments.size() * sizeof(Argument)) return;
    for (const Structure& structure : each.structures)
      if (at - (uintptr_t)structure.bytes.data() < structure.bytes.size()) return;
  }
  outside(at, write);
}

Shadow* shadow_of(uintptr_t& at) {
  for (Shadow& tensor : tensor_shadows)
    if (tensor.contains(at)) return &tensor;
  Shadow* shadow = variable_shadow(at);
  return shadow ? shadow : remote_shadow(at);
}

// A block that has given way to others goes on in the interval that it was in.
void loads_in_interval() {
  last_load = barrier_interval;
  unsigned slot = running_slot();
  if (slot >= last_load_of.size()) last_load_of.resize(slot + 1, ~0u);
  traffic.load_intervals += last_load_of[slot] != barrier_interval;
  last_load_of[slot] = barrier_interval;
}

// What an access does: an update is an atomic's, of which the memory system itself reads the old value.
enum Use { reads, writes, updates };

void global_update_of(uintptr_t at, unsigned bytes, const void* site) {
  traffic.global_updated += bytes;
  warps_access(global_update, at, bytes, site);
}

// The tensor that contains an address, with the access to it counted. One without a site has been
// counted before.
Shadow* tensor_access(uintptr_t at, unsigned bytes, Use use, const void* site) {
  bool write = use != reads;
  for (Shadow& shadow : tensor_shadows) {
    if (!shadow.contains(at)) continue;
    if (shadow.was_read && !write) shadow.mark_read(at, bytes);
    if (!site || use == updates) return &shadow;
    (write ? traffic.global_written : traffic.global_read) += bytes;
    warps_access(write ? global_store : global_load, at, bytes, site);
    if (write || !profiling) return &shadow;
    uint32_t& reader = shadow.read_by[(at - shadow.low) >> 5];
    traffic.distinct_sectors += reader != block_first;
    reader = block_first;
    if (last_load != barrier_interval) loads_in_interval();
    return &shadow;
  }
  return nullptr;
}

void shared_access(uintptr_t at, unsigned bytes, Use use, const void* site) {
  if (!site) return;
  (use == updates ? traffic.shared_updated : use == writes ? traffic.shared_written : traffic.shared_read) += bytes;
  warps_access(use == updates ? shared_update : use == writes ? shared_store : shared_load, at, bytes, site);
}

// What ordinary accesses have stored in shared memory is visible to asynchronous ones after a fence.
void check_fenced(const Shadow& shadow, uintptr_t at, unsigned bytes) {
  for (size_t k = shadow.index(at), last = shadow.index(at + bytes - 1); k <= last; ++k) {
    if (!hidden_from_async(shadow.cells[k].write)) continue;
    std::string element = element_of(shadow, shadow.address(k));
    fault("correctness",
          "%s reads %s asynchronously, and the thread that wrote it did not call fence.proxy.async after",
          here().c_str(), element.c_str());
  }
}

void settle() {
  if (shows_earlier) show_latest();
  if (overwriting) settle_overwrite();
}

void settle_before(uintptr_t at) {
  settle();
  if (!has_signalled || at - fiber_low < fiber_bytes) return;
  const Shadow* shadow = shadow_of(at);
  if (shadow && shadow->global && !shadow->read_only) pause_after_signal();
}

// What an access to shared memory of another block touches, which must be known to have begun.
Shadow* reached(uintptr_t& at, bool write) {
  Shadow* shadow = remote_shadow(at);
  if (!shadow) return nullptr;
  if (!knows_begun((unsigned)shadow->slot))
    fault("correctness", "%s %s %s of another block of its cluster, which may not have begun yet: synchronize "
          "the cluster before", here().c_str(), write ? "writes" : "reads", element_of(*shadow, at).c_str());
  order_reaches((unsigned)shadow->slot);
  return shadow;
}

// What others learn from, and pass on, at a place. In a cluster, the places of blocks differ.
uintptr_t meeting_place(const Shadow& shadow, uintptr_t at) {
  return shadow.slot < 0 ? at : (uintptr_t)(shadow.cells + shadow.index(at));
}

// What an access touches, counted; `at` is then as its shadow has it; null if it cannot race. An atomic
// counts as a store: the memory system itself reads the old value.
inline Shadow* touched(uintptr_t& at, unsigned bytes, Use use, const void* site) {
  if (__builtin_expect(overwriting | shows_earlier | has_signalled, 0)) settle_before(at);
  ++traffic.accesses;
  Shadow* shadow = recent_shared;
  if (!shadow->contains(at)) {
    if (at - fiber_low < fiber_bytes) return nullptr;
    shadow = variable_shadow(at);
    if (!shadow) shadow = tensor_access(at, bytes, use, site);
    if (!shadow) shadow = reached(at, use != reads);
    if (!shadow) {
      unknown_access(at, bytes, use != reads);
      return nullptr;
    }
    if (!shadow->global && (shadow->slot < 0 || (unsigned)shadow->slot == running_slot())) recent_shared = shadow;
  }
  if (!shadow->global) shared_access(at, bytes, use, site);
  else if (use == updates && site) global_update_of(at, bytes, site);
  if (!shadow->contains(at + bytes - 1)) outside(at + bytes - 1, use != reads);
  if (!shadow->read_only) return shadow;
  if (use != reads) outside(at, true);
  return nullptr;
}

template <bool write>
inline void access(const void* address, unsigned bytes, const void* site) {
  uintptr_t at = (uintptr_t)address;
  Shadow* shadow = touched(at, bytes, write ? writes : reads, site);
  if (!shadow) return;
  if (__builtin_expect(shadow->shift && ((at | bytes) & 3), 0)) shadow->refine();
  touch<write>(*shadow, at, bytes, site);
}

// What nobody can change, nobody waits for.
void may_wait_for(uintptr_t at) {
  const Shadow* shadow = shadow_of(at);
  if (!shadow || !shadow->read_only) block_may_wait();
}

void strong_access(const void* address, unsigned bytes, bool write, const void* site) {
  uintptr_t at = (uintptr_t)address;
  has_signalled = false;
  if (!write) may_wait_for(at);
  Shadow* shadow = touched(at, bytes, write ? writes : reads, site);
  if (!shadow) return;
  if (write && (has_read(*shadow, at, true) || has_written_strongly(*shadow, at))) interrupt(*shadow, at, bytes, false);
  if (!write) show_earlier(*shadow, at, bytes);
  touch_strong(*shadow, at, bytes, write, false);
  order_strong(meeting_place(*shadow, at), shadow->crosses_blocks(), write);
  if (shadow->global && (!write || is_polled(*shadow, at))) block_signals();
}

// Two phases of a barrier that follow one another pass on nothing to each other's waiters. One in
// global memory may be that of several blocks.
void phase_event(const void* word, unsigned phase, PhaseEvent event) {
  uintptr_t at = (uintptr_t)word, place = at + 1 + (phase & 1);
  may_wait_for(at);
  Shadow* shadow = touched(at, 8, event == phase_arrival ? writes : reads, word);
  if (shadow) touch_strong(*shadow, at, 8, event == phase_arrival, true);
  if (shadow && event == phase_arrival) {
    atomic_begins(at, 8);
    atomic_ends(*shadow, at, true);
  }
  bool global = shadow && shadow->global;
  if (event == phase_arrival) order_passes_on(place, global);
  if (event == phase_wait) order_learns(place, global);
}

void passes_on(const void* place) { order_passes_on((uintptr_t)place, false); }
void learns(const void* place) { order_learns((uintptr_t)place, false); }
void passes_on_outside(const void* place) { order_passes_on((uintptr_t)place, true); }
void learns_outside(const void* place) { order_learns((uintptr_t)place, true); }
void sends(const void* message) { order_sends((uintptr_t)message); }
void receives(const void* message) { order_receives((uintptr_t)message); }

void async_access(uintptr_t at, unsigned bytes, bool write, const void* site) {
  Shadow* shadow = touched(at, bytes, write ? writes : reads, site);
  if (!shadow) return;
  if (shadow->shift && (at | bytes) & 3) shadow->refine();
  if (!write && !shadow->global) check_fenced(*shadow, at, bytes);
  write ? touch<true>(*shadow, at, bytes, site) : touch<false>(*shadow, at, bytes, site);
}

void launch_begins(const Launch& launch) {
  int threads = (int)(launch.block.x * launch.block.y * launch.block.z);
  traffic = {};
  interruptions_begin();
  visibility_begins();
  order_launch_begins(threads);
  warps_launch_begins();
  cover_memory();
}

bool is_cluster() {
  Index cluster = cuhost_where.cluster_dim;
  return cluster.x * cluster.y * cluster.z > 1;
}

void block_begins() {
  order_block_begins(running_slot());
  cover_shared_memory(is_cluster() ? (int)running_slot() : -1);
  warps_block_begins();
}

void block_resumes(unsigned slot) {
  order_block_resumes(slot);
  use_shared_shadows(is_cluster() ? (int)slot : -1);
}

void leaves_cluster() {
  settle();
  if (std::string other = reached_by(); !other.empty())
    fault("correctness", "a block of %s may end before %s has accessed its shared memory: synchronize the "
          "cluster before it ends", running_kernel, other.c_str());
}

void block_pauses() { settle(); }

Traffic traffic_now() {
  traffic.barriers = barriers_passed;
  traffic.warps = (uint64_t)warps_active();
  return traffic;
}

}  // namespace

extern "C" {

extern const Hooks cuhost_hooks;
const Hooks cuhost_hooks = {launch_begins, block_begins,     block_pauses,  judge_suspected,
                            allow_interruptions, first_interruption, allow_earlier_values, last_earlier_value, traffic_now,
                            warps_tally,   warps_contention, warps_profiled,   order_lanes_meet,
                            order_barrier, block_resumes, order_thread_ends,
                            leaves_cluster, phase_event,
                            passes_on,     learns,           passes_on_outside,
                            learns_outside, sends,           receives,
                            order_async_begins, order_async_ends, async_access, record_comparisons, print_comparisons, print_unread};

void* cuhost_same_place(void* address) { return address; }
void cuhost_fence(bool device) { order_fence(device); }
void cuhost_fence_proxy() { order_fence_proxy(); }

void cuhost_atomic(const void* address, unsigned bytes, Update update) {
  uintptr_t at = (uintptr_t)address;
  has_signalled = false;
  block_may_wait();
  Shadow* shadow = touched(at, bytes, updates, __builtin_return_address(0));
  if (!shadow) return;
  if (update != adds) updates_what_it_read(*shadow, at);
  if (has_read(*shadow, at, update == replaces)) interrupt(*shadow, at, bytes, true);
  touch_strong(*shadow, at, bytes, true, true);
  order_strong(meeting_place(*shadow, at), shadow->crosses_blocks(), true);
  atomic_begins(at, bytes);
}

void cuhost_atomic_of_block(const void* address) {
  uintptr_t at = (uintptr_t)address;
  if (const Shadow* shadow = shadow_of(at)) check_scope(*shadow, at);
}

void cuhost_atomic_ends(const void* address, bool changed) {
  uintptr_t at = (uintptr_t)address;
  Shadow* shadow = shadow_of(at);
  if (!shadow) return;
  atomic_ends(*shadow, at, changed);
  if (shadow->global && (!changed || is_polled(*shadow, at))) block_signals();
}

void cuhost_range_of(const void* address, size_t bytes, bool write, const void* site) {
  const char* at = (const char*)address;
  if ((bytes == 8 || bytes == 16) && !((uintptr_t)at % bytes)) {
    write ? access<true>(at, (unsigned)bytes, site) : access<false>(at, (unsigned)bytes, site);
    return;
  }
  while (bytes) {
    unsigned step = bytes >= 4 && !((uintptr_t)at & 3) ? 4 : 1;
    write ? access<true>(at, step, site) : access<false>(at, step, site);
    at += step;
    bytes -= step;
  }
}

#define SITE __builtin_return_address(0)
void cuhost_range(const void* address, size_t bytes, bool write) {
  cuhost_range_of(address, bytes, write, SITE);
}
void cuhost_strong(const void* address, unsigned bytes, bool writes) {
  strong_access(address, bytes, writes, SITE);
}
// The cache for constants may hold what was there before the launch has written it.
void cuhost_load_constant(const void* address, unsigned bytes) {
  uintptr_t at = (uintptr_t)address;
  const Shadow* shadow = shadow_of(at);
  if (!shadow || !shadow->global || shadow->read_only || !shadow->contains(at + bytes - 1)) return;
  for (size_t k = shadow->index(at), last = shadow->index(at + bytes - 1); k <= last; ++k) {
    uint64_t write = shadow->cells[k].write;
    if (!write && shadow->strong) write = shadow->strong[k].write;
    if (!write) continue;
    fault("correctness",
          "%s reads %s by __ldg or ld.global.nc, which is for what no thread writes as long as the kernel runs, "
          "and %s has written it", here().c_str(), element_of(*shadow, shadow->address(k)).c_str(),
          place_of_stamp(write).c_str());
  }
}

#define HOOKS(n)                                                                  \
  void __tsan_read##n(void* p) { access<false>(p, n, SITE); }                     \
  void __tsan_write##n(void* p) { access<true>(p, n, SITE); }                     \
  void __tsan_unaligned_read##n(void* p) { access<false>(p, n, SITE); }           \
  void __tsan_unaligned_write##n(void* p) { access<true>(p, n, SITE); }           \
  void __tsan_volatile_read##n(void* p) { strong_access(p, n, false, SITE); }     \
  void __tsan_volatile_write##n(void* p) { strong_access(p, n, true, SITE); }     \
  void __tsan_unaligned_volatile_read##n(void* p) { strong_access(p, n, false, SITE); }  \
  void __tsan_unaligned_volatile_write##n(void* p) { strong_access(p, n, true, SITE); }  \
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
// Called by -fsanitize=object-size. Only a thread's own variables have no guards.
void __ubsan_handle_type_mismatch_v1(const Misaligned* what, uintptr_t at) {
  if (at - fiber_low >= fiber_bytes) return;
  fault("correctness", "%s %s beside a variable of its own", here().c_str(), what->kind == 1 ? "writes" : "reads");
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
