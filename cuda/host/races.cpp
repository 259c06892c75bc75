// Two accesses by different threads, at least one of them a write, race unless they are ordered (see
// order.h) or both are strong: atomics, or as volatile.
#include "races.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace cuhost {

bool overwriting;

namespace {

struct {
  uintptr_t at, element;  // in memory, and as the shadow has it
  unsigned bytes;
  uint64_t earlier, now;
  const char *earlier_verb, *verb;
  const Shadow* shadow;
  unsigned char before[16];
} overwrite;

// The atomic in progress.
struct {
  uintptr_t at;
  unsigned bytes;
  unsigned char before[16];
} updated;

std::string thread_of(uint64_t stamp) {
  Index index = index_of((unsigned)(stamp & 1023), cuhost_where.block_dim);
  char text[64];
  snprintf(text, sizeof text, "(%u,%u,%u)", index.x, index.y, index.z);
  return text;
}

std::string name_of_block(uint64_t stamp) {
  Index block = block_of(stamp);
  char text[64];
  snprintf(text, sizeof text, "(%u,%u,%u)", block.x, block.y, block.z);
  return text;
}

const char* verb_of(const StrongCell& cell) {
  return cell.atomic ? "atomically updates" : "writes (volatile)";
}

std::string describe(const Shadow& shadow, uintptr_t at, uint64_t first, const char* first_verb,
                     uint64_t second, const char* second_verb) {
  std::string element = element_of(shadow, at), one = thread_of(first), two = thread_of(second);
  const char* memory = shadow.global ? "global" : "shared";
  char text[1000];
  if (of_other_block(first))
    snprintf(text, sizeof text,
             "race on %s memory: thread %s of block %s %s and thread %s of block %s of %s %s %s, "
             "and nothing orders blocks",
             memory, one.c_str(), name_of_block(first).c_str(), first_verb, two.c_str(),
             name_of_block(second).c_str(), running_kernel, second_verb, element.c_str());
  else
    snprintf(text, sizeof text,
             "race on %s memory: threads %s and %s of block %s of %s access %s, the first %s and the "
             "second %s, without a barrier between",
             memory, one.c_str(), two.c_str(), name_of_block(second).c_str(), running_kernel,
             element.c_str(), first_verb, second_verb);
  return text;
}

[[noreturn]] void race_of(const Shadow& shadow, uintptr_t at, uint64_t first, const char* first_verb,
                          uint64_t second, const char* second_verb) {
  fault("correctness", "%s", describe(shadow, at, first, first_verb, second, second_verb).c_str());
}

}  // namespace

std::string place_of_stamp(uint64_t stamp) {
  return "thread " + thread_of(stamp) + " of block " + name_of_block(stamp);
}

void race(const Shadow& shadow, uintptr_t at, uint64_t first, const char* first_verb,
          const char* second_verb) {
  race_of(shadow, at, first, first_verb, thread_stamp, second_verb);
}

void overwrite_begins(const Shadow& shadow, uintptr_t at, unsigned bytes, uint64_t earlier,
                      const char* earlier_verb, const char* verb) {
  overwriting = true;
  overwrite = {at, at, std::min(bytes, 16u), earlier, thread_stamp, earlier_verb, verb, &shadow, {}};
  overwrite.at = (uintptr_t)memory_at(shadow, at);
  memcpy(overwrite.before, (const void*)overwrite.at, overwrite.bytes);
}

void settle_overwrite() {
  overwriting = false;
  if (!memcmp((const void*)overwrite.at, overwrite.before, overwrite.bytes)) return;
  race_of(*overwrite.shadow, overwrite.element, overwrite.earlier, overwrite.earlier_verb, overwrite.now,
          overwrite.verb);
}

// Before a plain write only the last strong one must be ordered: it has seen the others' results, as
// where the last thread to take a ticket resets the counter.
void plain_beside_strong(const Shadow& shadow, size_t cell, bool writes, const void* site) {
  const StrongCell& strong = shadow.strong[cell];
  const uint64_t now = thread_stamp;
  const char* verb = writes ? "writes" : "reads";
  for (uint64_t write : {strong.write, writes ? 0 : strong.other_write}) {
    if (!unordered(write, now, shadow.crosses_blocks())) continue;
    if (writes || !strong.atomic || !defers_races(site))
      race(shadow, shadow.address(cell), write, verb_of(strong), verb);
    if (!is_suspected(site))
      suspect(site, describe(shadow, shadow.address(cell), write, verb_of(strong), now, verb));
  }
  for (uint64_t read : {strong.read, strong.other_read}) {
    if (writes && unordered(read, now, shadow.crosses_blocks()))
      race(shadow, shadow.address(cell), read, "reads (volatile)", verb);
  }
}

static void see(StrongCell& strong) {
  if (!strong.seen) strong.seen = thread_stamp;
  else if (strong.seen != thread_stamp) strong.seen_by_others = true;
}

// Neither a read nor a write as volatile orders anything. But who has seen the last change, or comes
// after one who has, can only overwrite that.
static void overwrite_as_volatile(const Shadow& shadow, uintptr_t at, unsigned bytes,
                                  StrongCell& strong) {
  const uint64_t now = thread_stamp;
  bool seen = strong.seen_by_others || (strong.seen && !unordered(strong.seen, now, shadow.crosses_blocks()));
  if (!seen && !overwriting && unordered(strong.change, now, shadow.crosses_blocks()))
    overwrite_begins(shadow, at, bytes, strong.change, verb_of(strong),
                     "writes another value (volatile)");
  strong.change = now;
  strong.seen = 0;
  strong.seen_by_others = false;
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
    if (unordered(cell.write, now, shadow.crosses_blocks()))
      race(shadow, shadow.address(k), cell.write, "writes", verb);
    for (uint64_t read : {cell.read, cell.other_read}) {
      if (!writes || !unordered(read, now, shadow.crosses_blocks())) continue;
      const void* site = !shadow.sites       ? nullptr
                         : read == cell.read ? shadow.sites[k].read
                                             : shadow.sites[k].other_read;
      if (!atomic || !defers_races(site)) race(shadow, shadow.address(k), read, "reads", verb);
      if (!is_suspected(site))
        suspect(site, describe(shadow, shadow.address(k), read, "reads", now, verb));
    }
    StrongCell& strong = shadow.strong[k];
    if (writes && !atomic) {
      keep_earlier(shadow, strong, (const void*)shadow.address(k));
      overwrite_as_volatile(shadow, at, bytes, strong);
    }
    if (writes) {
      remember(strong.write, strong.other_write, now);
      strong.atomic = atomic;
    } else {
      remember(strong.read, strong.other_read, now);
      strong.atomic_read = false;
    }
    if (atomic || (!writes && !shows_earlier)) see(strong);
  }
}

void check_scope(const Shadow& shadow, uintptr_t at) {
  if (!shadow.strong) return;
  uint64_t write = shadow.strong[shadow.index(at)].write;
  if (of_other_block(write) && unordered(write, thread_stamp, shadow.crosses_blocks()))
    race(shadow, at, write, "atomically updates", "updates with an atomic of the block");
}

void atomic_begins(uintptr_t at, unsigned bytes) {
  updated.at = at;
  updated.bytes = std::min(bytes, 16u);
  memcpy(updated.before, (const void*)at, updated.bytes);
}

// One that has stored no other value was a read.
void atomic_ends(Shadow& shadow, uintptr_t at, bool changed) {
  if (!shadow.strong || at != updated.at) return;
  for (size_t k = shadow.index(at), last = shadow.index(at + updated.bytes - 1); k <= last; ++k) {
    StrongCell& strong = shadow.strong[k];
    if (!changed) {
      remember(strong.read, strong.other_read, thread_stamp);
      strong.atomic_read = true;
      continue;
    }
    keep_earlier(shadow, strong, updated.before + (shadow.address(k) - at));
    strong.change = thread_stamp;
    strong.seen = 0;
    strong.seen_by_others = false;
  }
  if (!changed) see_latest(shadow, at, updated.bytes);
}

}  // namespace cuhost
