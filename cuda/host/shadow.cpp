// Tables of cells; their pages cost nothing until they are used.
#include "shadow.h"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <sys/mman.h>

#include "teams.h"

namespace cuhost {

std::vector<Shadow> tensor_shadows;

namespace {

Shadow dynamics;
std::vector<Shadow> variables;  // shared ones and device ones
// Of blocks in clusters, by slot: their shared variables, and dynamic shared memory.
std::deque<std::vector<Shadow>> of_slots;
std::vector<Shadow>* own_shared = nullptr;
Shadow nothing;

template <class T>
T* allocate(size_t count) {
  void* memory = mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) fault("runtime", "no memory for the race detector");
  return (T*)memory;
}

template <class T>
void release(T*& memory, size_t count) {
  if (memory) munmap(memory, count * sizeof(T));
  memory = nullptr;
}

size_t cells_of(size_t bytes, int shift) { return (bytes >> shift) + 2; }
size_t sectors_of(size_t bytes) { return (bytes >> 5) + 2; }
size_t words_of(size_t bytes) { return (bytes >> 6) + 2; }

constexpr size_t most_noted_bytes = 64 << 20;  // of an input whose reads are noted
constexpr size_t most_ranges = 32;             // of an input that are told

bool is_empty(const Cell& cell) { return !(cell.write | cell.read); }
bool is_empty(const StrongCell& cell) { return !(cell.write | cell.read); }
bool is_empty(const ReadSites& sites) { return !sites.read; }

// What one byte has of a cell of four.
template <class T>
T part_of(const T& cell, size_t) {
  return cell;
}
StrongCell part_of(StrongCell cell, size_t byte) {
  cell.earlier >>= 8 * byte;
  return cell;
}

template <class T>
void spread(T*& cells, size_t bytes) {
  T* finer = allocate<T>(cells_of(bytes, 0));
  for (size_t k = 0; k < (bytes >> 2) + 1; ++k) {
    const T& cell = cells[k];
    if (is_empty(cell)) continue;
    for (size_t b = 4 * k; b < 4 * k + 4 && b < bytes; ++b) finer[b] = part_of(cell, b - 4 * k);
  }
  release(cells, cells_of(bytes, 2));
  cells = finer;
}

}  // namespace

Shadow* recent_shared = &dynamics;

void Shadow::cover(uintptr_t start, size_t length, bool is_global, bool counts_readers) {
  release(cells, cells_of(bytes, shift));
  release(strong, cells_of(bytes, shift));
  release(sites, cells_of(bytes, shift));
  release(read_by, sectors_of(bytes));
  if (bytes != length) release(was_read, words_of(bytes));
  low = start;
  bytes = length;
  shift = 2;
  global = is_global;
  cells = allocate<Cell>(cells_of(bytes, shift));
  if (plan.defers) sites = allocate<ReadSites>(cells_of(bytes, shift));
  if (counts_readers) read_by = allocate<uint32_t>(sectors_of(bytes));
}

void Shadow::refine() {
  if (!shift) return;
  spread(cells, bytes);
  if (strong) spread(strong, bytes);
  if (sites) spread(sites, bytes);
  shift = 0;
}

void Shadow::make_strong() {
  if (!strong) strong = allocate<StrongCell>(cells_of(bytes, shift));
}

void Shadow::mark_read(uintptr_t at, unsigned length) {
  size_t first = at - low, bit = first & 63;
  uint64_t mask = (1ull << length) - 1;
  was_read[first >> 6] |= mask << bit;
  if (bit + length > 64) was_read[(first >> 6) + 1] |= mask >> (64 - bit);
}

void print_unread() {
  for (size_t k = 0; k < tensor_shadows.size(); ++k) {
    const Shadow& shadow = tensor_shadows[k];
    if (!shadow.was_read) continue;
    std::vector<std::pair<size_t, size_t>> ranges;
    for (size_t byte = 0; byte < shadow.bytes;) {
      uint64_t word = shadow.was_read[byte >> 6];
      if (!(byte & 63) && word == ~0ull) {
        byte += 64;
        continue;
      }
      bool unread = !(word >> (byte & 63) & 1);
      if (unread && !ranges.empty() && ranges.back().second == byte) ++ranges.back().second;
      else if (unread) ranges.emplace_back(byte, byte + 1);
      ++byte;
    }
    printf("%s unread %s", plan.token, plan.tensors[k].name.c_str());
    // The first and the last of them, and others between them, evenly.
    size_t count = std::min(ranges.size(), most_ranges);
    for (size_t n = 0; n < count; ++n) {
      const auto& range = ranges[count == ranges.size() ? n : n * (ranges.size() - 1) / (count - 1)];
      printf(" %zu %zu", range.first, range.second);
    }
    printf("\n");
  }
}

void use_shared_shadows(int slot) {
  own_shared = slot < 0 ? nullptr : &of_slots[(size_t)slot];
  if (slot >= 0) recent_shared = &nothing;
}

void cover_shared_memory(int slot) {
  if (slot >= 0 && (size_t)slot >= of_slots.size()) of_slots.resize((size_t)slot + 1);
  use_shared_shadows(slot);
  if (slot < 0) return;
  size_t count = 0;
  auto cover = [&](const char* begin, size_t bytes) {
    if (own_shared->size() == count) own_shared->emplace_back();
    Shadow& shadow = (*own_shared)[count++];
    shadow.cover((uintptr_t)begin, bytes, false, false);
    shadow.slot = slot;
  };
  for (const Variable& variable : variables_of(checked_build))
    if (variable.kernel && in_shared((uintptr_t)variable.begin)) cover(variable.begin, variable.bytes);
  cover(dynamic_shared, dynamic_shared_bytes);
  for (; count < own_shared->size(); ++count) (*own_shared)[count].cover(0, 0, false, false);
}

static Shadow* covering(std::vector<Shadow>& shadows, uintptr_t at) {
  for (Shadow& shadow : shadows)
    if (shadow.contains(at)) return &shadow;
  return nullptr;
}

Shadow* remote_shadow(uintptr_t& at) {
  uintptr_t there = at;
  const Block* block = own_shared ? block_reached(there) : nullptr;
  Shadow* shadow = block ? covering(of_slots[block->slot], there) : nullptr;
  if (shadow) at = there;
  return shadow;
}

char* memory_at(const Shadow& shadow, uintptr_t at) {
  if (shadow.slot < 0 || (unsigned)shadow.slot == now->slot) return (char*)at;
  for (const Block* block : now->team->blocks)
    if (block && block->slot == (unsigned)shadow.slot) return kept_place(block->shared, at);
  return (char*)at;
}

void cover_memory() {
  recent_shared = &dynamics;
  own_shared = nullptr;
  const std::vector<Variable>& known = variables_of(checked_build);
  variables.resize(known.size());
  for (size_t k = 0; k < known.size(); ++k)
    variables[k].cover((uintptr_t)known[k].begin, known[k].bytes, !known[k].kernel, false);
  dynamics.cover((uintptr_t)dynamic_shared, dynamic_shared_bytes, false, false);
  tensor_shadows.resize(plan.tensors.size());
  for (size_t k = 0; k < tensor_shadows.size(); ++k) {
    const Tensor& tensor = plan.tensors[k];
    tensor_shadows[k].cover((uintptr_t)tensor.payload, tensor.bytes, true, true);
    Shadow& shadow = tensor_shadows[k];
    shadow.read_only = !tensor.writable;
    if (shadow.read_only && !shadow.was_read && tensor.bytes <= most_noted_bytes)
      shadow.was_read = allocate<uint64_t>(words_of(tensor.bytes));
  }
}

extern "C" char __executable_start, end;

bool in_program(uintptr_t at) {
  return at >= (uintptr_t)&__executable_start && at < (uintptr_t)&end;
}

Shadow* variable_shadow(uintptr_t at) {
  if (own_shared)
    if (Shadow* shadow = covering(*own_shared, at)) return shadow;
  if (dynamics.contains(at)) return &dynamics;
  if (!in_program(at)) return nullptr;
  for (Shadow& shadow : variables) {
    if (shadow.contains(at)) return &shadow;
  }
  return nullptr;
}

std::string element_of(const Shadow& shadow, uintptr_t at) {
  char text[300];
  for (const Tensor& tensor : plan.tensors) {
    size_t offset = at - (uintptr_t)tensor.payload;
    if (!shadow.global || offset >= tensor.bytes) continue;
    snprintf(text, sizeof text, "%s[%zu]", tensor.name.c_str(), offset / tensor.element_bytes);
    return text;
  }
  if (const Variable* variable = beside_variable(at)) {
    size_t offset = at - (uintptr_t)variable->begin;
    snprintf(text, sizeof text, "%s[%zu]", variable->name, offset / variable->element_bytes);
    return text;
  }
  snprintf(text, sizeof text, "byte %zu of the dynamic shared memory", (size_t)(at - dynamics.low));
  return text;
}

}  // namespace cuhost
