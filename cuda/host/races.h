// The rules by which two accesses race; linked only into the checked program.
#pragma once

#include "order.h"
#include "shadow.h"

namespace cuhost {

// A write over another thread's is judged once the value has been stored: writing the value that is
// already there is not a hazard.
extern bool overwriting;
void settle_overwrite();
std::string place_of_stamp(uint64_t stamp);  // thread and block
void overwrite_begins(const Shadow& shadow, uintptr_t at, unsigned bytes, uint64_t earlier,
                      const char* earlier_verb, const char* verb);

[[noreturn]] void race(const Shadow& shadow, uintptr_t at, uint64_t first, const char* first_verb,
                       const char* second_verb);
void plain_beside_strong(const Shadow& shadow, size_t cell, bool writes, const void* site);
// An atomic, or an access as volatile. An atomic counts as a write.
void touch_strong(Shadow& shadow, uintptr_t at, unsigned bytes, bool writes, bool atomic);
void check_scope(const Shadow& shadow, uintptr_t at);  // before an atomic of the block
// Before an atomic, and after it; `changed` if it stored another value.
void atomic_begins(uintptr_t at, unsigned bytes);
void atomic_ends(Shadow& shadow, uintptr_t at, bool changed);

// visibility.cpp
extern bool shows_earlier;  // until the next access a place holds an earlier value
void visibility_begins();   // with a launch
// Before a read as volatile: the place holds what it held before, if the running thread may still see that.
void show_earlier(const Shadow& shadow, uintptr_t at, unsigned bytes);
void show_latest();         // ends it
void see_latest(const Shadow& shadow, uintptr_t at, unsigned bytes);  // by an atomic
void keep_earlier(const Shadow& shadow, StrongCell& cell, const void* value);  // before a change
void allow_earlier_values(bool allowed);
const char* last_earlier_value();  // the last that was seen; null if there was none

// tentative.cpp
// Whether races by an instruction's plain reads beside atomics are judged when the launch has ended.
bool defers_races(const void* site);
bool is_suspected(const void* site);  // or known not to race
void suspect(const void* site, std::string what);
void updates_what_it_read(const Shadow& shadow, uintptr_t at);  // by an atomic that does more than add
void judge_suspected();                                         // at the end of a launch
// What the running thread has done since the last barrier.
bool has_read(const Shadow& shadow, uintptr_t at, bool by_atomics);
// Whether another block has read the place as volatile, or by an atomic that changed nothing.
bool is_polled(const Shadow& shadow, uintptr_t at);
bool has_written_strongly(const Shadow& shadow, uintptr_t at);

// Of each kind of access the last two are kept. The second is one by another warp if there is any:
// then whoever comes later in the interval finds one from outside its own warp.
inline void remember(uint64_t& last, uint64_t& other, uint64_t now) {
  if (last == now) return;
  bool keep = !((other ^ now) >> 32) && ((other ^ now) & 992);  // 1023 - 31
  if (!keep && ((last ^ now) & ~(0x3fffffull << 10))) other = last;
  last = now;
}

template <bool write>
inline void touch(const Shadow& shadow, uintptr_t at, unsigned bytes, const void* site) {
  const uint64_t now = thread_stamp;
  const bool global = shadow.crosses_blocks();
  for (size_t k = shadow.index(at), last = shadow.index(at + bytes - 1); k <= last; ++k) {
    Cell& cell = shadow.cells[k];
    if (write) {
      if (cell.read != now && unordered(cell.read, now, global))
        race(shadow, shadow.address(k), cell.read, "reads", "writes");
      if (unordered(cell.other_read, now, global))
        race(shadow, shadow.address(k), cell.other_read, "reads", "writes");
      if (cell.write != now && !overwriting && unordered(cell.write, now, global))
        overwrite_begins(shadow, at, bytes, cell.write, "writes", "writes another value");
      cell.write = now;
    } else {
      if (cell.write != now && unordered(cell.write, now, global))
        race(shadow, shadow.address(k), cell.write, "writes", "reads");
      uint64_t other = cell.other_read;
      remember(cell.read, cell.other_read, now);
      if (__builtin_expect(shadow.sites != nullptr, 0)) {
        ReadSites& sites = shadow.sites[k];
        if (cell.other_read != other) sites.other_read = sites.read;
        sites.read = site;
      }
    }
    if (__builtin_expect(shadow.strong != nullptr, 0)) plain_beside_strong(shadow, k, write, site);
  }
}

}  // namespace cuhost
