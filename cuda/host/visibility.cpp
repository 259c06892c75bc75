// What blocks do not see yet of one another's stores.
//
// A store as volatile, or an atomic, reaches the memory that blocks share at some time. When others see it
// next to what the same thread does later is certain only after a fence of the device. A thread that nothing
// orders after a store may therefore read what the place held before, as volatile: it finds that there once,
// which the place holds until the access after. What its block has seen of a place stays seen.
#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "races.h"

namespace cuhost {

bool shows_earlier;

namespace {

constexpr int most_earlier_values = 4096;     // earlier values that a launch's threads find

bool earlier_values_allowed = true;
int earlier_values_left;
std::string last;

// Which blocks have seen the last change of a place, or have found what it held before.
struct Seen {
  uint64_t change = 0;         // by block and fences
  std::vector<uint64_t> blocks;
};
std::unordered_map<uintptr_t, Seen> seen;

struct {
  uintptr_t at;
  unsigned bytes;
  unsigned char latest[16];
} shown;

// Returns whether it is the first time.
bool see_change(uintptr_t place, const StrongCell& cell) {
  Seen& known = seen[place];
  Index block = block_of(cell.change);
  uint64_t change = (block.x ^ (uint64_t)block.y << 24 ^ (uint64_t)block.z << 40) << 8 | cell.fences;
  if (known.change != change) known = {change, {}};
  if (std::count(known.blocks.begin(), known.blocks.end(), running_block())) return false;
  known.blocks.push_back(running_block());
  return true;
}

bool may_be_hidden(const Shadow& shadow, const StrongCell& cell) {
  return cell.change && of_other_block(cell.change) && unordered(cell.change, thread_stamp, shadow.global);
}

}  // namespace

void visibility_begins() {
  earlier_values_left = earlier_values_allowed ? most_earlier_values : 0;
  seen.clear();
}
void allow_earlier_values(bool allow) { earlier_values_allowed = allow; }
const char* last_earlier_value() { return last.empty() ? nullptr : last.c_str(); }

void keep_earlier(const Shadow& shadow, StrongCell& cell, const void* value) {
  if (cell.change && !of_other_block(cell.change) && cell.fences == fences_of_block()) return;
  memcpy(&cell.earlier, value, size_t(1) << shadow.shift);
  cell.fences = fences_of_block();
}

void show_earlier(const Shadow& shadow, uintptr_t at, unsigned bytes) {
  if (!earlier_values_left || !shadow.global || !shadow.strong || bytes > sizeof shown.latest) return;
  size_t cell_bytes = size_t(1) << shadow.shift;
  unsigned char earlier[sizeof shown.latest];
  memcpy(earlier, (const void*)at, bytes);
  uint64_t change = 0;
  for (size_t done = 0; done < bytes; done += cell_bytes) {
    const StrongCell& cell = shadow.strong[shadow.index(at + done)];
    if (!may_be_hidden(shadow, cell) || !see_change(at + done, cell)) continue;
    memcpy(earlier + done, &cell.earlier, cell_bytes);
    change = cell.change;
  }
  if (!change || !memcmp(earlier, (const void*)at, bytes)) return;
  --earlier_values_left;
  last = here() + " sees what " + place_of_stamp(change) + " has stored in " + element_of(shadow, at);
  shows_earlier = true;
  shown.at = at;
  shown.bytes = bytes;
  memcpy(shown.latest, (const void*)at, bytes);
  memcpy((void*)at, earlier, bytes);
}

void show_latest() {
  shows_earlier = false;
  memcpy((void*)shown.at, shown.latest, shown.bytes);
}

void see_latest(const Shadow& shadow, uintptr_t at, unsigned bytes) {
  if (!earlier_values_left || !shadow.global || !shadow.strong) return;
  size_t cell_bytes = size_t(1) << shadow.shift;
  for (size_t done = 0; done < bytes; done += cell_bytes) {
    const StrongCell& cell = shadow.strong[shadow.index(at + done)];
    if (may_be_hidden(shadow, cell)) see_change(at + done, cell);
  }
}

}  // namespace cuhost
