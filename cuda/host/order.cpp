// Happens-before, with vector clocks (Flanagan and Freund, "FastTrack", PLDI 2009).
//
// A thread's epoch advances where others may learn what it did so far. Barriers need no clocks,
// because barrier intervals are part of each stamp. Within an interval a thread knows the epochs of
// its warp's lanes from __syncwarp. Atomics and volatile accesses order memory only after a fence:
// they pass on what their thread has fenced. No fence is asked of the one that reads, since a branch
// depends on what it has read.
#include "order.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <unordered_map>
#include <unordered_set>

#include "views.h"

namespace cuhost {

uint32_t launch_first, block_first, own_first;

namespace {

struct Clock {
  uint32_t interval = 0;         // for which the following is valid
  bool listed;                   // among those that know more than at the last barrier
  uint32_t lanes[32];            // epochs known of the warp, from __syncwarp
  std::shared_ptr<const Epochs> acquired;  // of the block in this interval, from atomics and waits
  uint64_t included = 0;         // the version of a place's epochs that include these
  View outer;                    // of other blocks
  Epochs fenced_for[2];          // what a fence has made visible: in the block, on the device
};

// What one place passes on.
struct Place {
  View device;
  std::shared_ptr<Epochs> in_block;     // shared with threads of its block that have learnt it
  uint64_t version = 0;                 // of in_block, unique
  std::shared_ptr<const Epochs> added;  // last
};

// What the threads of one block know.
struct Knowledge {
  uint32_t number = 0;           // of the block, in the order in which they began
  uint32_t first = 0;            // interval
  uint8_t fences = 0;            // of the device
  std::vector<Clock> clocks;
  std::vector<Clock*> listed;
  View outer;
  Epochs fenced;
  std::unordered_map<uintptr_t, Place> places;
  std::vector<uint64_t> proxy_fences;  // of each thread the stamp after its last one
  // The last access of each thread of other blocks to the block's shared memory, until a thread that knows
  // of it has ended.
  std::unordered_map<uint64_t, uint64_t> reached;
};

// From which interval on intervals are those of one block.
struct Segment {
  uint32_t interval, number;
};

int thread_count;
bool fences;                     // whether there have been any in this launch
std::deque<Knowledge> known;     // by the slots of blocks
Knowledge* mine;
std::unordered_map<uintptr_t, View> on_device;  // what places in global memory pass on
std::vector<Segment> segments;
std::vector<Index> begun;        // blocks
std::unordered_set<uint64_t> async_stamps;  // of accesses by the asynchronous proxy

unsigned running() { return thread_stamp & 1023; }

Clock& clock_of(unsigned thread) {
  Clock& clock = mine->clocks[thread];
  if (clock.interval != barrier_interval) {
    clock.interval = barrier_interval;
    clock.listed = false;
    std::fill_n(clock.lanes, 32, 0u);
    clock.acquired = nullptr;
    clock.included = 0;
    clock.outer = mine->outer;
    for (Epochs& epochs : clock.fenced_for) epochs.interval = 0;
  }
  return clock;
}

void list(Clock& clock) {
  if (!clock.listed) mine->listed.push_back(&clock);
  clock.listed = true;
}

// What the thread knows of its warp and of itself.
void add_own(Epochs& known, const Clock& clock, unsigned thread) {
  unsigned first = thread & ~31u;
  for (unsigned k = first; k < first + 32 && k < (unsigned)thread_count; ++k)
    known.of[k] = std::max(known.of[k], clock.lanes[k - first]);
  known.of[thread] = epoch_of[thread] + 1;
}

void set_known(Epochs& known, const Clock& clock, unsigned thread) {
  known.interval = barrier_interval;
  known.of.assign((size_t)thread_count, 0);
  if (clock.acquired) known.add(*clock.acquired);
  add_own(known, clock, thread);
}

const Epochs& fenced_for_device(const Clock& clock) {
  return clock.fenced_for[1].interval ? clock.fenced_for[1] : mine->fenced;
}

void add_to_acquired(Clock& clock, const Epochs& epochs) {
  auto both = clock.acquired ? std::make_shared<Epochs>(*clock.acquired) : std::make_shared<Epochs>();
  both->add(epochs);
  clock.acquired = std::move(both);
  clock.included = 0;
}

// What a place passes on to other blocks. Places in shared memory are the block's own.
View& device_view(uintptr_t at, Place& place, bool global) {
  return global ? on_device[at] : place.device;
}

// A thread that has arrived at a barrier knows nothing that the others there will not know, so that
// they can share what they learn.
void acquire(Clock& clock, const View& device, const Place& place) {
  clock.outer = clock.outer.joined(device);
  if (place.in_block && place.in_block->interval == barrier_interval) {
    if (!clock.acquired || clock.included == place.version) clock.acquired = place.in_block;
    else add_to_acquired(clock, *place.in_block);
  }
  list(clock);
}

Epochs& changeable(Place& place) {
  static uint64_t versions;
  if (place.in_block.use_count() != 1) {
    place.in_block = place.in_block ? std::make_shared<Epochs>(*place.in_block) : std::make_shared<Epochs>();
    place.version = ++versions;
    place.added = nullptr;
  }
  return *place.in_block;
}

void release(Clock& clock, View& device, Place& place) {
  device = device.joined(clock.outer);
  const Epochs& fenced = fenced_for_device(clock);
  if (fenced.interval) device = device.with(mine->number, fenced);
  // Added to its own, for other lanes, to which it may tell the result of the atomic.
  if (clock.fenced_for[0].interval) add_to_acquired(clock, clock.fenced_for[0]);
  if (clock.acquired) changeable(place).add(*clock.acquired);
}

uint32_t number_of(uint64_t stamp) {
  auto later = std::upper_bound(
      segments.begin(), segments.end(), (uint32_t)(stamp >> 32),
      [](uint32_t at, const Segment& segment) { return at < segment.interval; });
  return later == segments.begin() ? mine->number : (later - 1)->number;
}

}  // namespace

void order_launch_begins(int threads) {
  thread_count = threads;
  launch_first = ~0u;
  fences = false;
  segments.clear();
  begun.clear();
  on_device.clear();
  async_stamps.clear();
  View::forget_all();
}

void order_block_begins(unsigned slot) {
  if (begun.empty()) launch_first = barrier_interval;
  if (known.size() <= slot) known.resize(slot + 1);
  mine = &known[slot];
  mine->number = (uint32_t)begun.size();
  mine->first = block_first = own_first = barrier_interval;
  mine->clocks.resize((size_t)thread_count);
  mine->listed.clear();
  mine->outer = {};
  mine->fenced.interval = 0;
  mine->fenced.of.clear();
  mine->places.clear();
  mine->proxy_fences.assign((size_t)thread_count, 0);
  mine->reached.clear();
  segments.push_back({barrier_interval, mine->number});
  begun.push_back(cuhost_where.block);
}

void order_block_resumes(unsigned slot) {
  mine = &known[slot];
  block_first = mine->first;
  own_first = segments.back().number == mine->number ? segments.back().interval : ~0u;
}

// What any thread knows, or has fenced, all know in the next interval.
void order_barrier(uint32_t next) {
  for (const Clock* clock : mine->listed) {
    mine->outer = mine->outer.joined(clock->outer);
    if (clock->fenced_for[1].interval) mine->fenced.add(clock->fenced_for[1]);
  }
  mine->listed.clear();
  if (segments.back().number == mine->number) return;
  segments.push_back({next, mine->number});
  own_first = next;
}

// Shuffles and votes order no memory, but pass on what a lane has learnt from an atomic: their
// result depends on it.
void order_lanes_meet(int first, unsigned members, bool all_memory) {
  uint32_t joint[32] = {};
  Clock all;
  View outer;
  for (int lane = 0; lane < 32; ++lane) {
    if (!(members >> lane & 1)) continue;
    Clock& clock = clock_of((unsigned)(first + lane));
    for (int k = 0; k < 32 && all_memory; ++k) joint[k] = std::max(joint[k], clock.lanes[k]);
    joint[lane] = epoch_of[first + lane] + 1;
    if (!fences) continue;
    if (clock.acquired && !all.acquired) all.acquired = clock.acquired;
    else if (clock.acquired && clock.acquired != all.acquired) add_to_acquired(all, *clock.acquired);
    outer = outer.joined(clock.outer);
    for (int k = 0; k < 2 && all_memory; ++k)
      if (clock.fenced_for[k].interval) all.fenced_for[k].add(clock.fenced_for[k]);
  }
  for (int lane = 0; lane < 32; ++lane) {
    if (!(members >> lane & 1)) continue;
    Clock& clock = mine->clocks[(size_t)(first + lane)];
    if (all_memory) {
      std::copy_n(joint, 32, clock.lanes);
      ++epoch_of[first + lane];
    }
    if (!fences) continue;
    if (clock.acquired != all.acquired) clock.included = 0;
    clock.acquired = all.acquired;
    clock.outer = outer;
    for (int k = 0; k < 2; ++k)
      if (all.fenced_for[k].interval) clock.fenced_for[k] = all.fenced_for[k];
    list(clock);
  }
}

void order_fence(bool device) {
  fences = true;
  unsigned thread = running();
  Clock& clock = clock_of(thread);
  set_known(clock.fenced_for[0], clock, thread);
  if (device) clock.fenced_for[1] = clock.fenced_for[0], ++mine->fences;
  list(clock);
  ++epoch_of[thread];
  update_stamp();
}

static void next_epoch() {
  ++epoch_of[running()];
  update_stamp();
}

void order_fence_proxy() {
  next_epoch();
  mine->proxy_fences[running()] = thread_stamp;
}

void order_async_begins() {
  next_epoch();
  async_stamps.insert(thread_stamp);
}
void order_async_ends() { next_epoch(); }

// Stamps of a block's thread ascend. Another block may have used the same shared memory since.
bool hidden_from_async(uint64_t write) {
  if (of_other_block(write)) return false;
  if (write >> 32 < mine->first || mine->proxy_fences[write & 1023] > write) return false;
  return !async_stamps.count(write);
}

// Places in shared memory are the block's own; what others in global memory pass on to its own threads
// is too.
void order_strong(uintptr_t at, bool global, bool writes) {
  if (!fences) return;
  Clock& clock = clock_of(running());
  Place& place = mine->places[at];
  View& device = device_view(at, place, global);
  acquire(clock, device, place);
  if (writes) release(clock, device, place);
}

void order_passes_on(uintptr_t at, bool global) {
  fences = true;
  unsigned thread = running();
  Clock& clock = clock_of(thread);
  Place& place = mine->places[at];
  View& device = device_view(at, place, global);
  device = device.joined(clock.outer);
  ++mine->fences;
  if (global) {
    Epochs known;
    set_known(known, clock, thread);
    device = device.with(mine->number, known);
  }
  Epochs& epochs = changeable(place);
  if (epochs.interval != barrier_interval) epochs = {barrier_interval, {}}, place.added = nullptr;
  epochs.of.resize((size_t)thread_count);
  if (clock.acquired && clock.acquired != place.added) epochs.add(*clock.acquired);
  if (clock.acquired) place.added = clock.acquired;
  add_own(epochs, clock, thread);
  clock.included = place.version;
  ++epoch_of[thread];
  update_stamp();
}

void order_learns(uintptr_t at, bool global) {
  Place& place = mine->places[at];
  acquire(clock_of(running()), device_view(at, place, global), place);
}

void order_sends(uintptr_t message) {
  order_passes_on(message, true);
  mine->places.erase(message);
}

// The thread that receives it also learns what the sender knew of its own block: what is done on its behalf
// comes after that.
void order_receives(uintptr_t message) {
  Clock& clock = clock_of(running());
  order_learns(message, true);
  mine->places.erase(message);
  on_device.erase(message);
  const Epochs* own = clock.outer.of(mine->number);
  if (own && own->interval == barrier_interval) add_to_acquired(clock, *own);
}

bool knows_begun(unsigned slot) {
  return known_from_elsewhere((uint64_t)known[slot].first << 32, running());
}

void order_reaches(unsigned slot) {
  known[slot].reached[(uint64_t)mine->number << 10 | running()] = thread_stamp;
}

void order_thread_ends() {
  for (auto access = mine->reached.begin(); access != mine->reached.end();)
    access = known_from_elsewhere(access->second, running()) ? mine->reached.erase(access) : std::next(access);
}

std::string reached_by() {
  if (mine->reached.empty()) return "";
  uint64_t stamp = mine->reached.begin()->second;
  return place_of(index_of((unsigned)(stamp & 1023), cuhost_where.block_dim), block_of(stamp));
}

bool known_in_block(uint64_t earlier, unsigned thread) {
  const Clock& clock = mine->clocks[thread];
  if (clock.interval != barrier_interval) return false;
  unsigned other = earlier & 1023;
  uint32_t epoch = earlier >> 10 & 0x3fffff;
  if ((other ^ thread) < 32 && clock.lanes[other & 31] > epoch) return true;
  return clock.acquired && clock.acquired->contain(earlier);
}

bool known_from_elsewhere(uint64_t earlier, unsigned thread) {
  uint32_t number = number_of(earlier);
  if (number == mine->number) return true;
  if (!fences) return false;
  const Epochs* epochs = clock_of(thread).outer.of(number);
  return epochs && epochs->contain(earlier);
}

uint8_t fences_of_block() { return mine->fences; }

bool of_other_block(uint64_t stamp) { return number_of(stamp) != mine->number; }

Index block_of(uint64_t stamp) { return begun.at(number_of(stamp)); }

}  // namespace cuhost
