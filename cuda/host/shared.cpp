// Shared memory: the variables of a text and the dynamic part, of which there is one copy. It holds the
// contents of the block that runs; those of blocks that wait are kept aside.
#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime.h"

namespace cuhost {

char* dynamic_shared = nullptr;
size_t dynamic_shared_bytes = 0;
extern "C" {
void* cuhost_dynamic_shared = nullptr;
}

namespace {

std::vector<Variable> shared;  // those that the entry may use
const char* entry_name = "";      // the name of the entry
// Shared memory begins at a multiple of this on a card, first with the static part.
constexpr size_t dynamic_alignment = 1024;
size_t dynamic_offset = 0;  // of the dynamic part from such a multiple
// Descriptors of matrices hold so many bytes' addresses.
constexpr size_t window_bytes = 1 << 18;

// Integers are large (or, in every other block, negative) for the first seed, 0 for the second, and the
// other way round for the third: a flag that is never set is then not always true, and a maximum or
// minimum is seen as well as a sum. Types of several members, of which some may be flags, are 0 for the
// third seed.
void poison_static() {
  bool odd_block = (cuhost_where.block.x + cuhost_where.block.y + cuhost_where.block.z) & 1;
  unsigned kind = plan.order_seed % poisons;
  int whole = kind == 1 ? 0 : odd_block == (kind == 0) ? 0x80 : 0x7f;
  for (const Variable& variable : shared) {
    if (variable.content == integral) memset(variable.begin, whole, variable.bytes);
    else if (variable.content == mixed && kind == 2) memset(variable.begin, 0, variable.bytes);
    else poison(variable.begin, variable.bytes);
  }
}

bool is_of_functions(const Variable& variable) { return !variable.kernel[0] || variable.kernel[0] == ' '; }

// Whether the entry's calls reach the declaration in a function, as far as the translator can tell.
bool is_reached(const Variable& variable) {
  return !variable.kernel[0] || strstr(variable.kernel, (" " + std::string(entry_name) + " ").c_str());
}

size_t padding() { return (dynamic_alignment - 1) & -(dynamic_shared_bytes + dynamic_offset); }

size_t rounded_up(size_t bytes) { return (bytes + dynamic_alignment - 1) & -dynamic_alignment; }

// With the offset of each among those that are kept, where it is as aligned as here.
template <class F>
void each_part(F&& part) {
  size_t offset = 0;
  for (const Variable& variable : shared) {
    part(variable.begin, variable.bytes, offset);
    offset += rounded_up(variable.bytes);
  }
  part(dynamic_shared, dynamic_shared_bytes, offset + dynamic_offset);
}

}  // namespace

void use_shared(const Entry* entry, Build build) {
  shared.clear();
  entry_name = entry->name;
  for (const Variable& variable : variables_of(build)) {
    if (variable.kernel && (is_of_functions(variable) || !strcmp(variable.kernel, entry_name)))
      shared.push_back(variable);
  }
}

// Only one instance of a kernel template runs, so the largest declaration of a variable counts.
size_t static_shared_bytes() {
  std::map<int, size_t> declared;
  for (const Variable& variable : shared) {
    size_t& bytes = declared[variable.number];
    if (!is_of_functions(variable)) bytes = std::max(bytes, variable.bytes);
    else if (is_reached(variable)) bytes += variable.bytes;
  }
  size_t sum = 0;
  for (const auto& [number, bytes] : declared) sum += bytes;
  return sum;
}

bool in_shared(uintptr_t at) {
  auto contains = [&](const Variable& variable) { return variable.contains(at); };
  return at - (uintptr_t)dynamic_shared < dynamic_shared_bytes ||
         std::any_of(shared.begin(), shared.end(), contains);
}

uintptr_t shared_place(unsigned low, unsigned mask) {
  uintptr_t found = 0;
  each_part([&](const char* begin, size_t bytes, size_t) {
    size_t offset = (low - (uintptr_t)begin) & mask;
    if (!found && offset < bytes) found = (uintptr_t)begin + offset;
  });
  return found;
}

uintptr_t shared_address(unsigned low) { return shared_place(low, window_bytes - 1); }

extern "C" {
bool cuhost_is_shared(const void* address) { return in_shared((uintptr_t)address); }
bool cuhost_is_local(const void* address) { return on_fiber_stack(address); }
}

void poison_shared() {
  poison_static();
  poison(dynamic_shared, dynamic_shared_bytes);
  fill_guard(dynamic_shared + dynamic_shared_bytes, padding());
}

void keep_shared(KeptShared& kept, bool reachable) {
  size_t size = 0, gap = reachable ? window_bytes : 0;  // address space is limited, and there may be thousands
  each_part([&](char*, size_t bytes, size_t offset) { size = offset + bytes; });
  if (size > kept.bytes || (size && gap > kept.gap)) {
    if (kept.data) munmap(kept.data - kept.gap, kept.bytes + 2 * kept.gap);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    kept.bytes = (size + 65535) & ~(size_t)65535;
    kept.gap = gap;
    kept.data = (char*)must_map(nullptr, kept.bytes + 2 * gap, PROT_NONE, flags, -1) + gap;
    must_map(kept.data, kept.bytes, PROT_READ | PROT_WRITE, flags | MAP_FIXED, -1);
  }
  each_part([&](char* begin, size_t bytes, size_t offset) {
    if (bytes) memcpy(kept.data + offset, begin, bytes);
  });
}

char* kept_place(const KeptShared& kept, uintptr_t at) {
  char* found = nullptr;
  each_part([&](char* begin, size_t bytes, size_t offset) {
    if (kept.data && at - (uintptr_t)begin < bytes) found = kept.data + offset + (at - (uintptr_t)begin);
  });
  return found;
}

uintptr_t address_of_kept(const KeptShared& kept, uintptr_t place) {
  uintptr_t found = 0, within = place - (uintptr_t)kept.data;
  each_part([&](char* begin, size_t bytes, size_t offset) {
    if (within - offset < bytes) found = (uintptr_t)begin + (within - offset);
  });
  return found;
}

void restore_shared(const KeptShared& kept) {
  each_part([&](char* begin, size_t bytes, size_t offset) {
    if (bytes) memcpy(begin, kept.data + offset, bytes);
  });
}

// Where addresses have 31 bits, as those of the program's own variables, because PTX has addresses
// of shared memory in registers of 32 bits.
static char* map_low(size_t bytes) {
  constexpr uintptr_t lowest = 1 << 29, step = 1 << 26, end = 1u << 31;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  for (uintptr_t hint = lowest; hint + bytes <= end; hint += step) {
    char* made = (char*)must_map((void*)hint, bytes, PROT_NONE, flags, -1);
    if ((uintptr_t)made + bytes <= end) return made;
    munmap(made, bytes);
  }
  fault("runtime", "there is no room for shared memory below 2 GiB");
}

// Whether some variable has the low bits of an address in the dynamic part.
static bool in_windows_of_variables(const char* begin, size_t bytes) {
  for (const Variable& variable : shared) {
    size_t after = (size_t)(variable.begin - begin) & (window_bytes - 1);
    if (after < bytes || after + variable.bytes > window_bytes) return true;
  }
  return false;
}

// The memory ends at the end of a page, so that an overrun faults; alignment leaves some bytes in
// between, which are checked after each block.
void map_dynamic_shared(size_t bytes, size_t alignment) {
  static char* region = nullptr;
  static size_t pages = 0;
  if (region) munmap(region, pages + 2 * gap_bytes + window_bytes);
  pages = (bytes + 65535 + 1) & ~(size_t)65535;
  region = map_low(pages + 2 * gap_bytes + window_bytes);
  dynamic_shared_bytes = bytes;
  dynamic_offset = (static_shared_bytes() + alignment - 1) / alignment * alignment % dynamic_alignment;
  size_t from_end = bytes + padding(), page = (size_t)sysconf(_SC_PAGESIZE);
  char* end = region + gap_bytes + pages;
  for (size_t k = 0; k < window_bytes && in_windows_of_variables(end - from_end, bytes); k += page) end += page;
  must_map(end - pages, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1);
  dynamic_shared = end - from_end;
  cuhost_dynamic_shared = dynamic_shared;
}

void check_shared(bool dynamic_only) {
  const char* touched = dynamic_only ? nullptr : touched_edge(shared);
  if (!touched)
    touched = written_in_guard(dynamic_shared + dynamic_shared_bytes, padding());
  if (touched)
    fault("runtime", "illegal address: block (%u,%u,%u) of %s %s", cuhost_where.block.x,
          cuhost_where.block.y, cuhost_where.block.z, running_kernel,
          describe_address(touched, "wrote").c_str());
}

}  // namespace cuhost
