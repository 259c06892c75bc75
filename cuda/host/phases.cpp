// Phases of barriers, by the libcu++ documentation of cuda::barrier and PTX ISA, "mbarrier".
#include "phases.h"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <unordered_map>
#include <vector>

#include "copies.h"
#include "teams.h"

namespace cuhost {
namespace {

constexpr uint64_t mark = 0x5ba, limit = (1 << 20) - 1;
constexpr unsigned phase_mask = 0xfff;

struct Word {
  uint64_t expected : 20, pending : 20, phase : 12, valid : 12;
};
static_assert(sizeof(Word) == sizeof(uint64_t), "as much as on a card");

bool is_valid(const Word& word) { return word.valid == mark; }

Word& word_at(const uint64_t* at) {
  Word& word = *(Word*)at;
  if ((uintptr_t)at % sizeof *at)
    fault("runtime", "misaligned address: %s uses a cuda::barrier or mbarrier that is not aligned to 8 bytes",
          here().c_str());
  if (!is_valid(word))
    fault("runtime", "%s uses a cuda::barrier or mbarrier that nothing has initialized, or that was overwritten",
          here().c_str());
  return word;
}

void note(const uint64_t* at, unsigned phase, PhaseEvent event) {
  if (runs_checked()) cuhost_hooks.phase(at, phase, event);
}

// Copies that take effect when a thread of their block waits for the phase, or for a later one.
template <class T>
struct Pending {
  T copies;
  unsigned phase;
};

// Of the phases before the current one, and of all if all have arrived there.
template <class T, class Make>
void make_pending(std::vector<Pending<T>>& pending, unsigned current, bool all_arrived, Make&& make) {
  auto due = std::stable_partition(pending.begin(), pending.end(), [&](const Pending<T>& each) {
    return each.phase == current && !all_arrived;
  });
  for (auto each = due; each != pending.end(); ++each) make(each->copies);
  pending.erase(due, pending.end());
}

struct Transfers {
  std::vector<Pending<Copy>> copies;
  std::vector<Pending<StartedCopies>> started;
  long long bytes = 0;  // that the running phase waits for
  int unseen = -1;      // the thread that has initialized the barrier and called no fence for copies
};

struct Expected {
  uint64_t block = 0;  // see running_block
  std::unordered_map<const void*, Transfers> by_word;
};

std::deque<Expected> expected;  // by the slots of blocks

auto& own_transfers() {
  if (expected.size() <= running_slot()) expected.resize(running_slot() + 1);
  Expected& mine = expected[running_slot()];
  if (mine.block != running_block()) mine = {running_block(), {}};
  return mine.by_word;
}

long long missing_bytes(const uint64_t* at) {
  auto found = own_transfers().find(at);
  return found == own_transfers().end() ? 0 : found->second.bytes;
}

// The end of a phase shows nothing to those that do not wait for it.
void waited(const uint64_t* at, unsigned phase, bool all_arrived) {
  auto& transfers = own_transfers();
  auto found = transfers.find(at);
  if (found != transfers.end()) {
    unsigned current = word_at(at).phase;
    make_pending(found->second.copies, current, all_arrived, make_copy);
    make_pending(found->second.started, current, all_arrived, make_copies);
  }
  note(at, phase, phase_wait);
}

}  // namespace

std::string missing_at(const uint64_t* at) {
  char text[80];
  snprintf(text, sizeof text, "%u more arrivals", (unsigned)word_at(at).pending);
  std::string result = text;
  if (long long bytes = missing_bytes(at)) result += " and " + std::to_string(bytes) + " more bytes";
  return result;
}

bool is_barrier(uint64_t word) { return is_valid(*(const Word*)&word); }

bool phase_has_ended(const uint64_t* at, unsigned phase) { return word_at(at).phase != phase; }

void arrive_with_copies(uint64_t* at, const std::vector<Copy>& copies, long long bytes) {
  unsigned phase = word_at(at).phase;
  if (runs_checked() && own_transfers()[at].unseen >= 0)
    fault("correctness", "%s lets a bulk copy arrive at an mbarrier, and the thread that initialized it called neither "
          "fence.mbarrier_init nor fence.proxy.async", here().c_str());
  note(at, phase, phase_arrival);
  for (const Copy& copy : copies) own_transfers()[at].copies.push_back({copy, phase});
  cuhost_phase_expect(at, -bytes);
  cuhost_phase_settle(at);
}

extern "C" {

void cuhost_phase_begin(uint64_t* at, long long expected) {
  if (expected < 0 || (uint64_t)expected > limit)
    fault("runtime", "%s initializes a cuda::barrier or mbarrier for %lld arrivals: 0 to %llu are possible",
          here().c_str(), expected, (unsigned long long)limit);
  report_access(at, sizeof *at, true, __builtin_return_address(0));
  own_transfers()[at] = {{}, {}, 0, (int)(thread_stamp & 1023)};
  Word word{(uint64_t)expected, (uint64_t)expected, 0, mark};
  *(Word*)at = word;
}

void cuhost_show_barriers() {
  for (auto& [at, transfers] : own_transfers())
    if (transfers.unseen == (int)(thread_stamp & 1023)) transfers.unseen = -1;
}

cuhost_Arrival cuhost_phase_arrive(uint64_t* at, long long count, bool drop) {
  take_messages();
  Word& word = word_at(at);
  unsigned phase = word.phase;
  note(at, phase, phase_arrival);
  if (count < 0 || (uint64_t)count > word.pending || (drop && !word.expected))
    fault("runtime", "%s arrives %lld times at a cuda::barrier or mbarrier that expects %llu more arrivals",
          here().c_str(), count, (unsigned long long)word.pending);
  word.pending -= (uint64_t)count;
  cuhost_turns = 0;
  if (drop) word.expected -= 1;
  return {phase, !word.pending && !missing_bytes(at)};
}

void cuhost_phase_arrive_with_copies(uint64_t* at, bool counted) {
  // An arrival that the phase did not expect is expected and made at once.
  cuhost_Arrival arrival = cuhost_phase_arrive(at, counted, false);
  own_transfers()[at].started.push_back({started_copies(), arrival.phase});
  if (arrival.last) cuhost_phase_end(at);
}

void cuhost_completion_begins(uint64_t* at) {
  waited(at, word_at(at).phase, true);
}
void cuhost_completion_ends(const uint64_t* at) { note(at, word_at(at).phase, phase_arrival); }

void cuhost_phase_end(uint64_t* at) {
  Word& word = word_at(at);
  word.pending = word.expected;
  word.phase = (word.phase + 1) & phase_mask;
  wake(at);
}

void cuhost_phase_forget(uint64_t* at) {
  word_at(at);
  report_access(at, sizeof *at, true, __builtin_return_address(0));
  own_transfers().erase(at);
  *at = 0;
}

void cuhost_phase_expect(uint64_t* at, long long bytes) {
  note(at, word_at(at).phase, phase_look);
  long long& missing = own_transfers()[at].bytes;
  missing += bytes;
  if (missing > (long long)limit || missing < -(long long)limit)
    fault("runtime", "%s lets an mbarrier wait for %lld bytes: at most %llu are possible", here().c_str(),
          missing, (unsigned long long)limit);
}

void cuhost_phase_settle(uint64_t* at) {
  if (!word_at(at).pending && !missing_bytes(at)) cuhost_phase_end(at);
}

bool cuhost_phase_tried(const uint64_t* at, unsigned phase) {
  take_messages();
  if (!phase_has_ended(at, phase)) {
    note(at, phase, phase_look);
    if (!try_at(at, phase)) return false;
    take_messages();
  }
  return cuhost_phase_over(at, phase);
}

bool cuhost_phase_over(const uint64_t* at, unsigned phase) {
  bool over = phase_has_ended(at, phase);
  if (over) waited(at, phase, false);
  else note(at, phase, phase_look);
  return over;
}

void cuhost_phase_wait(const uint64_t* at, unsigned phase) {
  take_messages();
  while (!phase_has_ended(at, phase)) {
    sleep_at(at, phase);
    take_messages();
  }
  waited(at, phase, false);
}

unsigned cuhost_phase_of_parity(const uint64_t* at, bool parity) {
  unsigned phase = word_at(at).phase;
  return (phase & 1) == (unsigned)parity ? phase : (phase - 1) & phase_mask;
}

void cuhost_phase_copy(uint64_t* at, void* to, const void* from, size_t bytes, size_t alignment) {
  unsigned phase = word_at(at).phase;
  own_transfers()[at].copies.push_back({begin_copy({to, from, bytes, 0}, alignment, __builtin_return_address(0)), phase});
}
}

}  // namespace cuhost
