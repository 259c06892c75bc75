// The interface between a translated kernel and the runtime that hosts it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "vectors.h"

namespace cuhost {

using Index = cuda_device::uint3;

// The indices of the running CUDA thread. Written by the scheduler at every switch.
struct Where {
  Index thread, block, block_dim, grid_dim, cluster_dim;
};

// A kernel argument: a tensor's address, a number to be converted to the parameter's type, or the address
// of a tensor map or structure.
struct Argument {
  enum Kind { pointer, integer, real, tensor_map, structure } kind;
  void* address;
  long long whole;
  double fraction;
};

struct Entry {
  const char* name;
  int parameters;
  const char* kinds;                   // one letter per parameter: pointer, floating, integer, map, structure
  const unsigned* sizes;               // bytes of each
  void (*call)(const Argument* arguments);
  int most_threads;                    // from its launch bounds; 0 without
  int cluster;                         // from __cluster_dims__, a byte for each of x, y, z; 0 without
  int shared_alignment;                // of dynamic shared memory, as it is declared
};

struct Table {
  const Entry* entries;
};
using cuhost_Entry = Entry;
using cuhost_Table = Table;

// Either side of a variable is kept free as far as an index into shared memory can reach, so that
// an out-of-bounds access hits no other variable. Untouched pages cost nothing.
constexpr std::size_t zone_bytes = 256 << 10;

// A program holds up to three builds of a kernel: as it is, with every access reported, and, where
// uninitialized local variables might be read, with zeros instead of a pattern in them.
enum Build { plain_build, checked_build, zeroed_build, builds };

// What the elements of a variable are: numbers of a kind, or of a type that may hold several.
enum Content { floating, integral, mixed };

// Whether an atomic's new value is the old one plus or minus something, or may be any other.
enum Update { adds, decides, replaces };
enum WarpOperation { warp_sync, warp_exchange, warp_ballot, warp_meeting };

extern "C" {
extern void* cuhost_dynamic_shared;

void cuhost_barrier(int line);
// A numbered barrier, for so many threads; some may arrive without waiting.
void cuhost_named_barrier(unsigned number, unsigned threads, bool waits);
// The barrier of all threads of a cluster that have not ended.
void cuhost_cluster_arrive(bool release);
void cuhost_cluster_wait();
// The barrier of all blocks of the grid, which the GPU must hold at once.
void cuhost_grid_barrier(int line);
// The address of the same place in the shared memory of another block of the cluster. What takes it is
// in clusters.h.
unsigned cuhost_map_shared(unsigned address, unsigned rank);
// The same for generic addresses, which plain accesses take, and back to the rank. The place of an address
// of 32 bits among the generic ones.
void* cuhost_map_shared_rank(const void* address, unsigned rank);
unsigned cuhost_shared_rank(const void* address);
char* cuhost_cluster_place(const void* address);
int cuhost_barrier_reduce(int predicate, char operation, int line);  // + count, & and, | or
// All live threads in the mask take part; returns the value of lane `source`, or the ballot.
uint64_t cuhost_warp(unsigned mask, uint64_t value, int source, WarpOperation operation);
// The lanes of the warp that are at this line and may go on together.
unsigned cuhost_active_lanes(int line);
// Called in each turn of a loop that may wait for another thread: lets others run now and then.
void cuhost_turn();
bool cuhost_waits_in_vain();  // ends the kernel: a GPU's compiler leaves out the loop that calls it
void cuhost_turn_before(const void* address);  // the same, before an atomic
void cuhost_nap();    // lets others run, or not yet where warps run ahead
void cuhost_yield();  // lets others run
// Turns of the running block since it, or something that others may wait for, has changed.
extern uint64_t cuhost_turns;
int cuhost_lane();
// Where a thread runs, which differs from launch to launch.
unsigned cuhost_smid();
unsigned cuhost_nsmid();
unsigned cuhost_warpid();
unsigned cuhost_nwarpid();
extern long long cuhost_cycles;  // the clock
bool cuhost_is_shared(const void* address);
bool cuhost_is_local(const void* address);
// Called for each variable before main. `kernel` is null unless the variable is __shared__. Of a
// variable outside kernels it is "" if all kernels may use it, or the names of those that may, each
// between spaces. Each instance of a template registers its own variable, under the same number.
void cuhost_variable(Build build, int number, const char* kernel, const char* name, char* begin,
                     size_t bytes, size_t element_bytes, Content content, const void* initial);
// Called for each constant variable before main; returns true.
bool cuhost_constant(Build build, size_t bytes);
// Only the checked program has the next nine.
void cuhost_fence(bool device);  // or else of the block
void cuhost_fence_proxy();       // the thread's accesses come before asynchronous ones
void cuhost_atomic(const void* address, unsigned bytes, Update update);
void cuhost_strong(const void* address, unsigned bytes, bool writes);
// Returns the address. The compiler does not know the size of the variable that lies there.
void* cuhost_same_place(void* address) __attribute__((__malloc__));
void cuhost_load_constant(const void* address, unsigned bytes);  // before a load by the read-only cache
void cuhost_atomic_of_block(const void* address);  // before an atomic whose scope is the block
void cuhost_atomic_ends(const void* address, bool changed);  // it has stored another value
void cuhost_range(const void* address, size_t bytes, bool write);
// `site` is the instruction, or null if the access has been counted.
void cuhost_range_of(const void* address, size_t bytes, bool write, const void* site);
// Copies of the running thread from global to shared memory, which is poisoned in between.
void cuhost_copy_later(void* to, const void* from, size_t bytes, size_t zeros);
void cuhost_commit_copies();
void cuhost_finish_copies(size_t but_latest);
void* cuhost_malloc(std::size_t bytes);
void cuhost_free(void* memory);
int cuhost_printf(const char* format, ...) __attribute__((format(printf, 1, 2)));
[[noreturn]] void cuhost_trap(const char* what);
[[noreturn]] void cuhost_assert(const char* expression, int line);
}

// Leaves a section in programs with code for tensor cores, as a GPU's machine code would have their
// instructions. Here, because kernel.h takes assembler away from all that follows.
static inline __attribute__((always_inline)) void cuhost_note_tensor_cores() {
  asm volatile(".pushsection .cuhost_tensor_cores,\"a\"\n\t.byte 1\n\t.popsection");
}

}  // namespace cuhost
