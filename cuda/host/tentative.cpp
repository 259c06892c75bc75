// Plain reads of what other threads update atomically.
//
// Such a read is a race, unless the reader makes sure with an atomic of its own: a loop around atomicCAS
// begins with a plain read, and `if (v > *p) atomicMax(p, v);` saves atomics. What an instruction reads is
// therefore judged when its launch has ended: it is tentative if a thread that executed it then updated the
// same place, other than by adding to it.
#include <map>
#include <set>

#include "races.h"

namespace cuhost {
namespace {

std::set<const void*> tentative;               // instructions
std::map<const void*, std::string> suspected;  // what each of the others has done

bool by_running_thread(uint64_t stamp) {
  return !((stamp ^ thread_stamp) & ~(0x3fffffull << 10));
}

}  // namespace

bool defers_races(const void* site) { return plan.defers && site; }

bool is_suspected(const void* site) { return tentative.count(site) || suspected.count(site); }

void suspect(const void* site, std::string what) { suspected.emplace(site, std::move(what)); }

void updates_what_it_read(const Shadow& shadow, uintptr_t at) {
  if (!shadow.sites) return;
  size_t k = shadow.index(at);
  const Cell& cell = shadow.cells[k];
  const void* site = by_running_thread(cell.read)         ? shadow.sites[k].read
                     : by_running_thread(cell.other_read) ? shadow.sites[k].other_read
                                                          : nullptr;
  if (!site) return;
  tentative.insert(site);
  suspected.erase(site);
}

void judge_suspected() {
  if (!suspected.empty()) fault("correctness", "%s", suspected.begin()->second.c_str());
  tentative.clear();
}

bool is_polled(const Shadow& shadow, uintptr_t at) {
  if (!shadow.strong) return false;
  const StrongCell& strong = shadow.strong[shadow.index(at)];
  return of_other_block(strong.read) || of_other_block(strong.other_read);
}

bool has_read(const Shadow& shadow, uintptr_t at, bool by_atomics) {
  size_t k = shadow.index(at);
  if (by_running_thread(shadow.cells[k].read)) return true;
  if (!shadow.strong) return false;
  const StrongCell& strong = shadow.strong[k];
  if (strong.atomic_read && !by_atomics) return false;
  return by_running_thread(strong.read) || by_running_thread(strong.other_read);
}

bool has_written_strongly(const Shadow& shadow, uintptr_t at) {
  return shadow.strong && by_running_thread(shadow.strong[shadow.index(at)].write);
}

}  // namespace cuhost
