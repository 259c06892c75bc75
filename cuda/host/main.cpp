// Runs the launches of a plan on request, or checks a sample of their blocks once.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <map>
#include <numeric>
#include <unordered_set>
#include <vector>
#include <unistd.h>

#include "runtime.h"

namespace cuhost {
namespace {

const Table* table;
const Entry* entry;

std::vector<Variable> shared;  // those that the entry may use

// Only one instance of a kernel template runs, so the largest declaration of a variable counts.
size_t static_shared_bytes() {
  std::map<int, size_t> declared;
  for (const Variable& variable : shared) {
    size_t& bytes = declared[variable.number];
    bytes = variable.kernel[0] ? std::max(bytes, variable.bytes) : bytes + variable.bytes;
  }
  size_t sum = 0;
  for (const auto& [number, bytes] : declared) sum += bytes;
  return sum;
}

void take(const Table& from, const Launch& launch) {
  table = &from;
  entry = &table->entries[launch.entry];
  shared.clear();
  Build build = table == &cuhost_checked_table  ? checked_build
                : table == &cuhost_zeroed_table ? zeroed_build
                                                : plain_build;
  for (const Variable& variable : variables_of(build)) {
    if (variable.kernel && (!variable.kernel[0] || !strcmp(variable.kernel, entry->name)))
      shared.push_back(variable);
  }
}

void poison_shared() {
  poison_static_shared(shared);
  poison(dynamic_shared, dynamic_shared_bytes);
  fill_guard(dynamic_shared + dynamic_shared_bytes, 127 & -dynamic_shared_bytes);
}

void poison_and_report() {
  poison_shared();
  cuhost_hooks.block_begins();
}

// Order of the grid's blocks: ascending, descending, or with a stride that is coprime to their
// number and so visits each once.
struct BlockOrder {
  uint64_t count, seed, stride = 1, offset = 0;
  BlockOrder(uint64_t count, uint64_t seed) : count(count), seed(seed) {
    if (seed < 2) return;
    uint64_t mixed = seed * 0x9e3779b97f4a7c15ull;
    stride = mixed % count + 1;
    while (std::gcd(stride, count) != 1) ++stride;
    offset = (mixed >> 32) % count;
  }
  unsigned at(uint64_t step) const {
    if (seed == 1) return (unsigned)(count - 1 - step);
    return (unsigned)((step * stride + offset) % count);
  }
};

uint64_t blocks_of(const Launch& launch) {
  return (uint64_t)launch.grid.x * launch.grid.y * launch.grid.z;
}

void fit(const Launch& launch) {
  if ((int)launch.arguments.size() != entry->parameters)
    fault("constraints", "%s takes %d parameters but the launch gives %zu arguments", entry->name,
          entry->parameters, launch.arguments.size());
  for (size_t k = 0; k < launch.arguments.size(); ++k) {
    bool pointer = launch.arguments[k].kind == Argument::pointer;
    if (pointer != (entry->kinds[k] == 'p'))
      fault("constraints", "parameter %zu of %s is a %s but the launch gives a %s", k + 1,
            entry->name, pointer ? "number" : "pointer", pointer ? "tensor" : "number");
    if (pointer) continue;
    // A real card gets the bytes of the scalar unconverted.
    const Scalar& scalar = launch.scalars[k];
    const char* kind = launch.arguments[k].kind == Argument::real ? "floating" : "integer";
    if (entry->kinds[k] != kind[0] || entry->sizes[k] != scalar.bytes)
      fault("constraints", "parameter %zu of %s is %s number of %d bytes but the scalar %s is %s",
            k + 1, entry->name, entry->kinds[k] == 'f' ? "a floating" : "an integer",
            entry->sizes[k], scalar.name.c_str(), scalar.type.c_str());
  }
  unsigned threads = launch.block.x * launch.block.y * launch.block.z;
  if (entry->most_threads && threads > (unsigned)entry->most_threads)
    fault("constraints", "%s has %u threads a block; its __launch_bounds__ allow %d", entry->name,
          threads, entry->most_threads);
  for (size_t bytes : constant_bytes) {
    if (bytes > constant_limit)
      fault("constraints", "%s has %zu bytes of __constant__ variables; a program may have %zu",
            entry->name, bytes, constant_limit);
  }
  size_t fixed = static_shared_bytes();
  if (fixed > static_shared_limit)
    fault("constraints", "%s has %zu bytes of static shared memory; a block may have %zu",
          entry->name, fixed, static_shared_limit);
  if (fixed + launch.shared_bytes > plan.shared_limit)
    fault("constraints",
          "%s needs %zu bytes of shared memory, %zu static and %zu dynamic; a block may have %zu",
          entry->name, fixed + launch.shared_bytes, fixed, launch.shared_bytes, plan.shared_limit);
}

// The first and last block, the corners of the grid, and then others drawn from the seed, each with
// its neighbours: neighbouring blocks are the likeliest to access the same places.
class Sample {
 public:
  explicit Sample(const Launch& launch)
      : grid(launch.grid), order(blocks_of(launch), plan.order_seed + 2) {}
  // The next block; false if there is none left.
  bool next(unsigned& block) {
    while (at < 8 || step < order.count) {
      block = at < 8 ? corner(corners[at]) : neighbour(order.at(step), at - 8);
      if (at < 8) ++at;
      else if (++at == 8 + 4) at = 8, ++step;
      if (drawn.insert(block).second) return true;
    }
    return false;
  }
  bool has(unsigned block) const { return drawn.count(block) != 0; }

 private:
  static constexpr unsigned corners[] = {0, 7, 1, 6, 2, 5, 3, 4};
  Index grid;
  BlockOrder order;
  std::unordered_set<unsigned> drawn;
  unsigned at = 0;
  uint64_t step = 0;

  unsigned corner(unsigned k) const {
    unsigned x = k & 1 ? grid.x - 1 : 0, y = k & 2 ? grid.y - 1 : 0, z = k & 4 ? grid.z - 1 : 0;
    return x + grid.x * (y + grid.y * z);
  }
  unsigned neighbour(unsigned block, unsigned k) const {
    Index index = index_of(block, grid);
    if (k == 1 && index.x + 1 < grid.x) return block + 1;
    if (k == 2 && index.y + 1 < grid.y) return block + grid.x;
    if (k == 3 && index.z + 1 < grid.z) return block + grid.x * grid.y;
    return block;
  }
};

void run_all(const Launch& launch, const Sample* except, uint64_t stride) {
  Scheduler scheduler{entry, &launch, poison_shared, false};
  uint64_t count = blocks_of(launch);
  BlockOrder order(count, plan.order_seed);
  for (uint64_t step = 0; step < count; step += stride) {
    unsigned block = order.at(step);
    if (except && except->has(block)) continue;
    run_block(scheduler, index_of(block, launch.grid), plan.order_seed);
    check_shared(shared);
  }
}

// A block costs about as much as this many accesses, apart from its own.
constexpr uint64_t block_accesses = 64;

void print_profile(uint64_t blocks, uint64_t barriers) {
  Traffic t = cuhost_hooks.traffic();
  printf("%s profile %llu %llu %llu %llu %llu %llu %zu %llu %llu", plan.token,
         (unsigned long long)blocks,
         (unsigned long long)t.global_read, (unsigned long long)t.global_written,
         (unsigned long long)t.shared_read, (unsigned long long)t.shared_written,
         (unsigned long long)barriers, static_shared_bytes(),
         (unsigned long long)t.distinct_sectors, (unsigned long long)t.load_intervals);
  const WarpTally* warps = cuhost_hooks.warps();
  for (const WarpTally* sum = warps; sum != warps + access_kinds; ++sum)
    printf(" %llu %llu %llu", (unsigned long long)sum->bytes, (unsigned long long)sum->requests,
           (unsigned long long)sum->parts);
}

// The first blocks make the profile; further ones are only checked. Threads start in ascending
// order in one block and in descending order in the next, because some races show in one of them.
void check(const Launch& launch, bool last) {
  Scheduler scheduler{entry, &launch, poison_and_report, true};
  cuhost_hooks.launch_begins(launch);
  Sample sample(launch);
  uint64_t barriers = barriers_passed, blocks = 0, accesses = 0;
  bool profiled = false;
  for (unsigned block; sample.next(block); ) {
    run_block(scheduler, index_of(block, launch.grid), plan.order_seed ^ (blocks & 1));
    cuhost_hooks.block_ends();
    ++blocks;
    accesses = cuhost_hooks.traffic().accesses;
    if (!profiled && (blocks == plan.profiled_blocks || accesses > plan.profiled_accesses)) {
      print_profile(blocks, barriers_passed - barriers);
      cuhost_hooks.profiled();
      profiled = true;
    }
    if (profiled && accesses + blocks * block_accesses > plan.access_budget) break;
  }
  if (!profiled) print_profile(blocks, barriers_passed - barriers);
  printf(" %llu\n", (unsigned long long)blocks);
  if (last) return;
  // Later launches need all results of this one: run the other blocks unchecked.
  take(cuhost_table, launch);
  run_all(launch, &sample, 1);
}

void begin(const Launch& launch, const Table& from) {
  take(from, launch);
  running_kernel = entry->name;
  fit(launch);
  map_dynamic_shared(launch.shared_bytes);
}

void check_all() {
  for (const Launch& launch : plan.launches) {
    begin(launch, cuhost_checked_table);
    check(launch, &launch == &plan.launches.back());
    check_guards();
  }
}

void run_all_launches(uint64_t stride) {
  bool zeroed = &cuhost_zeroed_table && plan.order_seed & 1;
  for (const Launch& launch : plan.launches) {
    begin(launch, zeroed ? cuhost_zeroed_table : cuhost_table);
    run_all(launch, nullptr, stride);
    check_guards();
  }
}

double cpu_seconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

// Device variables and workspaces keep their contents from run to run.
void run(const Runs& runs) {
  plan.order_seed = runs.seed;
  if (runs.fresh) poison_workspaces();
  double began = cpu_seconds(), spent;
  uint64_t count = 0;
  do {
    run_all_launches(runs.stride);
    ++count;
    spent = cpu_seconds() - began;
  } while (count < runs.most && spent < runs.budget_seconds);
  printf("%s ran %llu %.6f\n", plan.token, (unsigned long long)count, spent);
  if (fflush(stdout)) _exit(71);  // the kernel has closed it
}

}  // namespace
}  // namespace cuhost

int main() {
  using namespace cuhost;
  read_plan();
  map_tensors();
  install_signal_handlers();
  if (plan.check) {
    poison_workspaces();
    check_all();
  } else {
    for (Runs runs; read_runs(runs);) run(runs);
  }
  printf("%s done\n", plan.token);
  return 0;
}
