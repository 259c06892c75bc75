// The parts of the runtime that hosts a kernel, and their interfaces.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "interface.h"
#include "tensor_maps.h"

namespace cuhost {

constexpr size_t guard_bytes = 65536;      // of files, and never mapped; as GUARD_BYTES of devices/device.py
constexpr size_t gap_bytes = 32ull << 20;  // unmapped on either side of a tensor and its guards
constexpr int max_threads = 1024;
constexpr unsigned poisons = 3;            // kinds, which follow one another from seed to seed
constexpr size_t constant_limit = 65536;        // CUDA: constant memory of a program
constexpr size_t static_shared_limit = 49152;   // CUDA: static shared memory of a block

struct Tensor {
  std::string name, type;
  size_t bytes, element_bytes;
  bool writable, workspace;
  bool restored;         // before each run, to what it held when runs were asked for
  int file;              // descriptor, -1 for a workspace
  char* region;          // gap, pages of the payload, gap
  size_t region_bytes;
  char* payload;         // at the beginning of its pages
  char* other = nullptr;  // region and payload of a copy that ends with its pages, unless this does, too
  char* other_payload;
  std::vector<char> contents;  // of one that is restored
};

struct Scalar {
  std::string name, type;
  size_t bytes;
};

// The tensor and form of a tensor map; the runtime adds the address.
struct Map {
  size_t tensor;
  TensorMap form;
};

// Its bytes, and the tensors whose addresses belong at places in them.
struct Structure {
  std::string members;
  std::vector<char> bytes;
  std::vector<std::pair<size_t, size_t>> pointers;  // offset, tensor
};

struct Launch {
  int entry;
  Index grid, block;
  size_t shared_bytes;
  unsigned resident;                   // blocks that a GPU holds at once, as far as threads go
  std::vector<Argument> arguments;
  std::vector<Scalar> scalars;         // one per argument, empty for tensors and maps
  std::vector<Map> maps;               // likewise, empty for others
  std::vector<Structure> structures;   // likewise
};

// A __shared__ or device variable.
struct Variable {
  int number;
  const char *kernel, *name;           // as for cuhost_variable
  char* begin;
  size_t bytes, element_bytes;
  Content content;
  bool contains(uintptr_t at) const { return at - (uintptr_t)begin < bytes; }
};

struct Plan {
  char token[32] = "-";          // begins each line of the answer to the latest request
  bool check = false;
  bool inspect = false;          // checks on request, with what tensors hold then
  bool defers = false;           // races of plain reads beside atomics, see tentative.cpp
  uint64_t order_seed = 0;
  uint64_t profiled_blocks = 0, profiled_accesses = 0;  // the profile covers no more
  size_t shared_limit = 0;       // static and dynamic shared memory of a block
  size_t shared_of_card = 0;     // of all blocks that a GPU holds at once
  size_t fibers = 0;             // threads of blocks that have begun and not ended
  unsigned multiprocessors = 1, warps = 64;             // warps of a multiprocessor
  uint64_t access_budget = 0;                           // of the check
  std::vector<Tensor> tensors;
  std::vector<Launch> launches;
};

// A request to run all launches once or repeatedly.
struct Runs {
  uint64_t seed = 0;             // orders threads and blocks, and chooses the poison
  bool fresh = true;             // poison the workspaces first
  uint64_t most = 1;             // runs
  double budget_seconds = 0;     // CPU time after which no other run begins
  uint64_t stride = 1;           // every how manyth block runs
};

extern Plan plan;
extern const char* running_kernel;         // name of the entry, for messages

// report.cpp: one line on standard output gives the outcome. A kernel can write there too, but has
// not been told the token that begins each line.
[[noreturn]] void fault(const char* outcome, const char* format, ...)
    __attribute__((format(printf, 2, 3)));
std::string place_of(Index thread, Index block);   // "thread (1,0,0) of block (0,0,0) of main"
std::string here();
void install_signal_handlers();

// memory.cpp
void read_plan();
bool read_runs(Runs& runs);  // false if there are no more
void map_tensors();
// Moves tensors to where they end, or begin, with their pages: what lies beyond cannot be accessed.
void move_tensors();
void keep_contents();     // of tensors that are read and written
void restore_contents();  // to what they held when kept
void forget_stores();     // of a check, whose outputs are then as they were before it
void poison_workspaces();
void poison(void* memory, size_t bytes);
void check_guards();
bool in_guard(const void* address);  // so near a tensor that a card would find memory there
// guards.cpp: bytes that differ from poison and from address to address.
void fill_guard(char* begin, size_t bytes);
const char* written_in_guard(const char* begin, size_t bytes);  // the first, or null
void* must_map(void* at, size_t bytes, int protection, int flags, int file, size_t offset = 0);
const char* touched_edge(const std::vector<Variable>& variables);
extern size_t constant_bytes[builds];
std::vector<Variable>& variables_of(Build build);
const Variable* beside_variable(uintptr_t at);      // that contains, or lies beside, `at`
std::string describe_address(const void* address, const char* verb);  // "" if nothing is near

// shared.cpp
void use_shared(const Entry* entry, Build build);  // the variables that an entry may use
size_t static_shared_bytes();
void map_dynamic_shared(size_t bytes, size_t alignment);
bool in_shared(uintptr_t at);
// The address in shared memory of which these are the low bits; 0 if there is none.
uintptr_t shared_place(unsigned low, unsigned mask);
uintptr_t shared_address(unsigned low);  // of the low 18 bits
void poison_shared();
void check_shared(bool dynamic_only);              // the bytes beside it
// The contents of a block's shared memory while another block runs, at a place that other blocks of its
// cluster can access.
struct KeptShared {
  char* data = nullptr;
  size_t bytes = 0, gap = 0;  // unmapped on either side
  bool contains(uintptr_t at) const { return at - (uintptr_t)data < bytes; }
};
void keep_shared(KeptShared& kept, bool reachable);  // by other blocks
void restore_shared(const KeptShared& kept);
// Where they have what is at an address in shared memory; null if it is not there.
char* kept_place(const KeptShared& kept, uintptr_t at);
// The address in shared memory of a place in them; 0 between variables.
uintptr_t address_of_kept(const KeptShared& kept, uintptr_t place);
extern char* dynamic_shared;
extern size_t dynamic_shared_bytes;

// heap.cpp
bool in_heap(uintptr_t at);                     // of a checked launch
bool heap_holds(uintptr_t at, size_t bytes);    // whether a kernel has taken and not freed them

// scheduler.cpp
bool runs_checked();
struct Scheduler {
  const Entry* entry;
  const Launch* launch;
  void (*block_begins)();
  bool checked;              // report to the hooks
};
void give_way(uint64_t blocks);         // lets other threads run, and so many other blocks
unsigned running_slot();                // of the running block, see block.h
uint64_t running_block();               // its number, likewise
void block_may_wait();                  // the running block may wait for others from now on
bool on_fiber_stack(const void* address);
bool beyond_fiber_stack(const void* address);
Index index_of(unsigned flat, Index extent);
extern uintptr_t fiber_low, fiber_bytes;
// Bits 63..32: barrier interval, unique in the process; 31..10: the thread's epoch; 9..0: thread.
extern uint64_t thread_stamp;
extern uint32_t* epoch_of;              // of each thread, see order.cpp
void update_stamp();                    // after a new epoch of the running thread
extern uint32_t barrier_interval;
extern uint64_t barriers_passed;
// The running thread waits at a barrier's word until another one wakes those that do, or, if other
// blocks can reach it, until the phase has ended.
void sleep_at(const uint64_t* word, unsigned phase);
void wake(const uint64_t* word);
// The same, but not for long: until no other thread can go on. The first time only others run; whether
// it was not the first.
bool try_at(const uint64_t* word, unsigned phase);
// phases.cpp
std::string missing_at(const uint64_t* word);  // "1 more arrivals"
bool phase_has_ended(const uint64_t* word, unsigned phase);
bool is_barrier(uint64_t word);

// accesses.cpp, linked only into the checked program
struct Traffic {
  uint64_t global_read, global_written, shared_read, shared_written, accesses;
  uint64_t global_updated, shared_updated;  // by atomics: no part of what is written
  uint64_t distinct_sectors;  // sectors of 32 bytes that a block reads, each counted once
  uint64_t load_intervals;    // barrier intervals in which a block reads global memory
  uint64_t barriers;          // that a block passes
  uint64_t warps;             // of a block, of which each may make as many accesses as the busiest
};

// warps.cpp, likewise
enum Access { global_load, global_store, shared_load, shared_store, global_update, shared_update, access_kinds };

// Sums over the sampled warp-wide accesses. A part is a sector of 32 bytes of global memory, or a
// wavefront of shared memory: lanes served together, without bank conflicts.
struct WarpTally {
  uint64_t bytes, requests, parts;
};
// At the place of a barrier: an arrival passes on what its thread did, a wait learns it.
enum PhaseEvent { phase_arrival, phase_wait, phase_look };

struct Hooks {
  void (*launch_begins)(const Launch&);
  void (*block_begins)();
  void (*block_pauses)();       // or ends
  void (*launch_ends)();
  void (*allow_interruptions)(bool allowed);
  const char* (*first_interruption)();  // null if nothing changed in any
  void (*allow_earlier_values)(bool allowed);
  const char* (*last_earlier_value)();  // null if none was seen
  Traffic (*traffic)();
  const WarpTally* (*warps)();  // one tally for each kind of access
  uint64_t (*contention)(uint64_t run, uint64_t blocks);  // see warps.h
  void (*profiled)();           // no tally is needed any more
  void (*lanes_meet)(int first, unsigned members, bool all_memory);  // in a warp function
  void (*barrier)(uint32_t next);  // before its interval ends, and the next one begins
  void (*block_resumes)(unsigned slot);
  void (*thread_ends)();        // of a cluster
  void (*leaves_cluster)();     // the running block, after its threads
  void (*phase)(const void* word, unsigned phase, PhaseEvent event);
  void (*passes_on)(const void* place);  // what the thread did, to those that learn from the place
  void (*learns)(const void* place);
  void (*passes_on_outside)(const void* place);  // also to other blocks
  void (*learns_outside)(const void* place);
  void (*sends)(const void* message);     // the same, to one thread that receives it, of another block
  void (*receives)(const void* message);
  // Around accesses that are made in the background, through the asynchronous proxy.
  void (*async_begins)();
  void (*async_ends)();
  void (*async_access)(uintptr_t at, unsigned bytes, bool write, const void* site);
  void (*record_comparisons)(bool on);
  void (*print_comparisons)();
  void (*print_unread)();
};

extern "C" {
extern Where cuhost_where;
extern const Table cuhost_table __attribute__((weak));          // the kernel as it is
extern const Table cuhost_zeroed_table __attribute__((weak));
extern const Table cuhost_checked_table __attribute__((weak));  // with every access reported
extern const Hooks cuhost_hooks __attribute__((weak));
}

}  // namespace cuhost
