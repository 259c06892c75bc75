// Two accesses by different threads, at least one of them a write, race unless they are ordered (see
// order.h) or both are strong: atomics, or as volatile.
#include "races.h"

#include <cstdio>
#include <cstring>

namespace cuhost {

bool overwriting;

namespace {

struct {
  uintptr_t at;
  unsigned bytes;
  uint64_t earlier;
  const Shadow* shadow;
  unsigned char before[16];
} overwrite;

std::string thread_of(uint64_t stamp) {
  Index index = index_of((unsigned)(stamp & 1023), cuhost_where.block_dim);
  char text[64];
  snprintf(text, sizeof text, "(%u,%u,%u)", index.x, index.y, index.z);
  return text;
}

std::string block_of(uint64_t stamp) {
  Index block = block_at((uint32_t)(stamp >> 32));
  char text[64];
  snprintf(text, sizeof text, "(%u,%u,%u)", block.x, block.y, block.z);
  return text;
}

const char* verb_of(const StrongCell& cell) {
  return cell.atomic ? "atomically updates" : "writes (volatile)";
}

[[noreturn]] void race_of(const Shadow& shadow, uintptr_t at, uint64_t first, const char* first_verb,
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

}  // namespace

void race(const Shadow& shadow, uintptr_t at, uint64_t first, const char* first_verb,
          const char* second_verb) {
  race_of(shadow, at, first, first_verb, thread_stamp, second_verb);
}

void overwrite_begins(const Shadow& shadow, uintptr_t at, unsigned bytes, uint64_t earlier) {
  overwriting = true;
  overwrite.at = at;
  overwrite.bytes = bytes > 16 ? 16 : bytes;
  overwrite.earlier = earlier;
  overwrite.shadow = &shadow;
  memcpy(overwrite.before, (const void*)at, overwrite.bytes);
}

void settle_overwrite() {
  overwriting = false;
  if (!memcmp((const void*)overwrite.at, overwrite.before, overwrite.bytes)) return;
  race_of(*overwrite.shadow, overwrite.at, overwrite.earlier, "writes",
          overwrite.shadow->cells[overwrite.shadow->index(overwrite.at)].write,
          "writes another value");
}

// Before a plain write only the last strong one must be ordered: it has seen the others' results, as
// where the last thread to take a ticket resets the counter.
void plain_beside_strong(const Shadow& shadow, size_t cell, bool writes) {
  const StrongCell& strong = shadow.strong[cell];
  const uint64_t now = thread_stamp;
  const char* verb = writes ? "writes" : "reads";
  for (uint64_t write : {strong.write, writes ? 0 : strong.other_write}) {
    if (unordered(write, now, shadow.global))
      race(shadow, shadow.address(cell), write, verb_of(strong), verb);
  }
  for (uint64_t read : {strong.read, strong.other_read}) {
    if (writes && unordered(read, now, shadow.global))
      race(shadow, shadow.address(cell), read, "reads (volatile)", verb);
  }
}

void touch_strong(Shadow& shadow, uintptr_t at, unsigned bytes, bool writes, bool atomic) {
  if ((at | bytes) & 3) shadow.refine();
  shadow.make_strong();
  const uint64_t now = thread_stamp;
  const char* verb = atomic   ? "atomically updates"
                     : writes ? "writes (volatile)"
                              : "reads (volatile)";
  for (size_t k = shadow.index(at), last = shadow.index(at + bytes - 1); k <= last; ++k) {
    const Cell& cell = shadow.cells[k];
    if (unordered(cell.write, now, shadow.global))
      race(shadow, shadow.address(k), cell.write, "writes", verb);
    for (uint64_t read : {cell.read, cell.other_read}) {
      if (writes && unordered(read, now, shadow.global))
        race(shadow, shadow.address(k), read, "reads", verb);
    }
    StrongCell& strong = shadow.strong[k];
    if (writes) {
      remember(strong.write, strong.other_write, now);
      strong.atomic = atomic;
    } else {
      remember(strong.read, strong.other_read, now);
    }
  }
}

}  // namespace cuhost
