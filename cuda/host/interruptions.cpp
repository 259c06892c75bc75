#include "interruptions.h"

#include <algorithm>
#include <cstring>

#include "grid.h"
#include "races.h"

namespace cuhost {
namespace {

constexpr int most_interruptions = 60;               // of a launch
constexpr uint64_t longest = 64;       // blocks
bool interruptions_allowed = true;
int interruptions_left, pauses_left, depth;
uint64_t signaller, signal_stamp;      // the block and the thread that have signalled
bool takes_lock;                       // the thread that is interrupted
std::string first;

}  // namespace

bool has_signalled;

void interruptions_begin() {
  interruptions_left = pauses_left = interruptions_allowed ? most_interruptions : 0;
  has_signalled = false;
}
void block_signals() {
  has_signalled = pauses_left > 0 && blocks_of(cuhost_where.grid_dim) > 1;
  signaller = running_block();
  signal_stamp = thread_stamp;
}

void pause_after_signal() {
  if (depth || signaller != running_block()) return;
  bool same_thread = !((signal_stamp ^ thread_stamp) & 1023), after_barrier = (signal_stamp ^ thread_stamp) >> 32;
  if (!same_thread && !after_barrier) return;
  has_signalled = false;
  --pauses_left;
  ++depth;
  give_way(longest >> pauses_left % 6);
  --depth;
  if (overwriting) settle_overwrite();
}

void allow_interruptions(bool allow) { interruptions_allowed = allow; }
const char* first_interruption() { return first.empty() ? nullptr : first.c_str(); }

void interrupt(const Shadow& shadow, uintptr_t at, unsigned bytes, bool atomically) {
  if (!interruptions_left || (depth && !(depth == 1 && takes_lock && !atomically))) return;
  if (memory_at(shadow, at) != (char*)at) return;
  if (!depth) takes_lock = atomically;
  --interruptions_left;
  unsigned char before[16];
  bytes = std::min(bytes, 16u);
  memcpy(before, (const void*)at, bytes);
  ++depth;
  give_way(longest >> (most_interruptions - 1 - interruptions_left) % 6);
  --depth;
  if (overwriting) settle_overwrite();
  if (first.empty() && memcmp(before, (const void*)at, bytes))
    first = here() + " updates " + element_of(shadow, at) + " after it has read it";
}

}  // namespace cuhost
