// Happens-before, with vector clocks (Flanagan and Freund, "FastTrack", PLDI 2009).
//
// A thread's epoch advances where others may learn what it did so far. Barriers need no clocks,
// because barrier intervals are part of each stamp. Within an interval a thread knows the epochs of
// its warp's lanes from __syncwarp. Atomics and volatile accesses order memory only after a fence:
// they pass on what their thread has fenced. No fence is asked of the one that reads, since a branch
// depends on what it has read.
#include "order.h"

#include <algorithm>
#include <memory>
#include <unordered_map>

#include "views.h"

namespace cuhost {

uint32_t launch_first, block_first;

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
  uint32_t block = 0;            // first interval of the block whose threads know the rest
  std::shared_ptr<Epochs> in_block;     // shared with threads that have learnt it
  uint64_t version = 0;                 // of in_block, unique
  std::shared_ptr<const Epochs> added;  // last
};

struct Begin {
  uint32_t interval;
  Index block;
};

int thread_count;
bool fences;                     // whether there have been any in this launch
Clock clocks[max_threads];
std::vector<Clock*> listed;
View block_outer;
Epochs block_fenced;
std::unordered_map<uintptr_t, Place> places;
std::vector<Begin> begins;

unsigned running() { return thread_stamp & 1023; }

Clock& clock_of(unsigned thread) {
  Clock& clock = clocks[thread];
  if (clock.interval != barrier_interval) {
    clock.interval = barrier_interval;
    clock.listed = false;
    std::fill_n(clock.lanes, 32, 0u);
    clock.acquired = nullptr;
    clock.included = 0;
    clock.outer = block_outer;
    for (Epochs& epochs : clock.fenced_for) epochs.interval = 0;
  }
  return clock;
}

void list(Clock& clock) {
  if (!clock.listed) listed.push_back(&clock);
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
  return clock.fenced_for[1].interval ? clock.fenced_for[1] : block_fenced;
}

void add_to_acquired(Clock& clock, const Epochs& epochs) {
  auto both = clock.acquired ? std::make_shared<Epochs>(*clock.acquired) : std::make_shared<Epochs>();
  both->add(epochs);
  clock.acquired = std::move(both);
  clock.included = 0;
}

// A thread that has arrived at a barrier knows nothing that the others there will not know, so that
// they can share what they learn.
void acquire(Clock& clock, const Place& place) {
  clock.outer = clock.outer.joined(place.device);
  if (place.in_block && place.in_block->interval == barrier_interval) {
    if (!clock.acquired || clock.included == place.version) clock.acquired = place.in_block;
    else add_to_acquired(clock, *place.in_block);
  }
  list(clock);
}

// What was passed on within another block is of no use in this one.
Place& place_of_block(uintptr_t at) {
  Place& place = places[at];
  if (place.block != block_first) {
    place.block = block_first;
    place.in_block = nullptr;
  }
  return place;
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

void release(Clock& clock, Place& place) {
  place.device = place.device.joined(clock.outer);
  const Epochs& fenced = fenced_for_device(clock);
  if (fenced.interval) place.device = place.device.with((unsigned)begins.size() - 1, fenced);
  // Added to its own, for other lanes, to which it may tell the result of the atomic.
  if (clock.fenced_for[0].interval) add_to_acquired(clock, clock.fenced_for[0]);
  if (clock.acquired) changeable(place).add(*clock.acquired);
}

}  // namespace

void order_launch_begins(int threads) {
  thread_count = threads;
  launch_first = barrier_interval + 1;
  fences = false;
  begins.clear();
  places.clear();
  View::forget_all();
}

void order_block_begins() {
  block_first = barrier_interval;
  begins.push_back({barrier_interval, cuhost_where.block});
  listed.clear();
  block_outer = {};
  block_fenced.interval = 0;
  block_fenced.of.clear();
}

// Called before the interval ends. What any thread knows, or has fenced, all know from then on.
void order_barrier() {
  for (const Clock* clock : listed) {
    block_outer = block_outer.joined(clock->outer);
    if (clock->fenced_for[1].interval) block_fenced.add(clock->fenced_for[1]);
  }
  listed.clear();
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
  }
  for (int lane = 0; lane < 32; ++lane) {
    if (!(members >> lane & 1)) continue;
    Clock& clock = clocks[first + lane];
    if (all_memory) {
      std::copy_n(joint, 32, clock.lanes);
      ++epoch_of[first + lane];
    }
    if (!fences) continue;
    if (clock.acquired != all.acquired) clock.included = 0;
    clock.acquired = all.acquired;
    clock.outer = outer;
    list(clock);
  }
}

void order_fence(bool device) {
  fences = true;
  unsigned thread = running();
  Clock& clock = clock_of(thread);
  set_known(clock.fenced_for[0], clock, thread);
  if (device) clock.fenced_for[1] = clock.fenced_for[0];
  list(clock);
  ++epoch_of[thread];
  update_stamp();
}

void order_strong(uintptr_t at, bool writes) {
  if (!fences) return;
  Clock& clock = clock_of(running());
  Place& place = place_of_block(at);
  acquire(clock, place);
  if (writes) release(clock, place);
}

void order_passes_on(uintptr_t at) {
  fences = true;
  unsigned thread = running();
  Clock& clock = clock_of(thread);
  Place& place = place_of_block(at);
  place.device = place.device.joined(clock.outer);
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

void order_learns(uintptr_t at) { acquire(clock_of(running()), place_of_block(at)); }

bool known_in_block(uint64_t earlier, unsigned thread) {
  const Clock& clock = clocks[thread];
  if (clock.interval != barrier_interval) return false;
  unsigned other = earlier & 1023;
  uint32_t epoch = earlier >> 10 & 0x3fffff;
  if ((other ^ thread) < 32 && clock.lanes[other & 31] > epoch) return true;
  return clock.acquired && clock.acquired->contain(earlier);
}

bool known_of_other_block(uint64_t earlier, unsigned thread) {
  if (!fences) return false;
  auto later = std::upper_bound(begins.begin(), begins.end(), (uint32_t)(earlier >> 32),
                                [](uint32_t at, const Begin& begin) { return at < begin.interval; });
  const Epochs* epochs = clock_of(thread).outer.of((unsigned)(later - begins.begin()) - 1);
  return epochs && epochs->contain(earlier);
}

Index block_at(uint32_t interval) {
  auto later = std::upper_bound(begins.begin(), begins.end(), interval,
                                [](uint32_t at, const Begin& begin) { return at < begin.interval; });
  return later == begins.begin() ? Index{} : (later - 1)->block;
}

}  // namespace cuhost
