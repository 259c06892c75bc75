// What is remembered of the accesses to shared memory, tensors and device variables.
// Linked only into the checked program.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime.h"

namespace cuhost {

// Plain accesses to a place, each as the thread's stamp; 0 is none.
struct Cell {
  uint64_t write, read, other_read;
};

// Atomics and accesses as volatile. They do not race with one another, unless one as volatile
// overwrites what its thread cannot have seen.
struct StrongCell {
  uint64_t write, other_write, read, other_read;
  uint64_t change;     // the last write as volatile, or atomic that stored another value
  uint64_t seen;       // the first strong read after it
  bool seen_by_others;  // whether another thread has read it, too
  bool atomic;         // the last write
  bool atomic_read;    // the last read, by an atomic that stored no other value
  uint8_t fences;      // of the changing block until then, see fences_of_block()
  uint32_t earlier;    // what the cell's bytes held before the last changes, without a fence in between
};

// The instructions of a cell's plain reads.
struct ReadSites {
  const void *read, *other_read;
};

// Cells cover four bytes each until a narrower access occurs, and one byte from then on.
struct Shadow {
  uintptr_t low = 0;
  size_t bytes = 0;
  int shift = 2;
  Cell* cells = nullptr;
  StrongCell* strong = nullptr;  // none until there is a strong access
  ReadSites* sites = nullptr;    // none unless the plan defers races
  uint32_t* read_by = nullptr;   // the last block that read a sector of a tensor
  uint64_t* was_read = nullptr;  // a bit for each byte of an input that any run has read
  bool global = false, read_only = false;
  int slot = -1;                 // of the block, in a cluster: others may access its shared memory

  bool crosses_blocks() const { return global || slot >= 0; }

  bool contains(uintptr_t at) const { return at - low < bytes; }
  size_t index(uintptr_t at) const { return (at - low) >> shift; }
  uintptr_t address(size_t cell) const { return low + (cell << shift); }
  void cover(uintptr_t start, size_t length, bool is_global, bool counts_readers);
  void refine();                 // to one cell a byte
  void make_strong();            // let `strong` have cells
  void mark_read(uintptr_t at, unsigned length);  // of at most 16 bytes
};

extern std::vector<Shadow> tensor_shadows;
extern Shadow* recent_shared;  // the shared variable, or dynamic shared memory, accessed last

void cover_memory();           // of the launch that begins
void print_unread();           // a line of the answer for each input: what no run has read of it
bool in_program(uintptr_t at);
// The running block's, where it is one of a cluster.
void cover_shared_memory(int slot);
void use_shared_shadows(int slot);
// Of shared memory of another block in the running block's cluster; `at` becomes the address there.
Shadow* remote_shadow(uintptr_t& at);
char* memory_at(const Shadow& shadow, uintptr_t at);  // what is there, also if it is another block's
// The shared or device variable, or dynamic shared memory, that contains an address.
Shadow* variable_shadow(uintptr_t at);
std::string element_of(const Shadow& shadow, uintptr_t at);

}  // namespace cuhost
