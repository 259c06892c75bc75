// Runs the launches of a plan on request, or checks a sample of their blocks once.
#include <cstdio>
#include <cstring>
#include <ctime>
#include <optional>
#include <vector>
#include <unistd.h>

#include "outcomes.h"
#include "resident.h"
#include "teams.h"

namespace cuhost {
namespace {

const Table* table;
const Entry* entry;

void take(const Table& from, const Launch& launch) {
  table = &from;
  entry = &table->entries[launch.entry];
  Build build = table == &cuhost_checked_table  ? checked_build
                : table == &cuhost_zeroed_table ? zeroed_build
                                                : plain_build;
  use_shared(entry, build);
}

void poison_and_report() {
  poison_shared();
  cuhost_hooks.block_begins();
}

void fit_structure(const Launch& launch, size_t k) {
  const Structure& given = launch.structures[k];
  unsigned bytes = entry->sizes[k];
  if (launch.arguments[k].kind != Argument::structure)
    fault("constraints", "parameter %zu of %s is a struct of %u bytes: give a list of its members in the "
          "launch's arguments, such as ['n', 'x']", k + 1, entry->name, bytes);
  if (entry->kinds[k] != 's' && entry->kinds[k] != 'm')
    fault("constraints", "parameter %zu of %s is a %s but the launch gives the struct %s", k + 1, entry->name,
          entry->kinds[k] == 'p' ? "pointer" : "number", given.members.c_str());
  if (bytes != given.bytes.size())
    fault("constraints", "parameter %zu of %s has %u bytes, but the struct %s of the launch has %zu", k + 1,
          entry->name, bytes, given.members.c_str(), given.bytes.size());
}

void fit(const Launch& launch) {
  if ((int)launch.arguments.size() != entry->parameters)
    fault("constraints", "%s takes %d parameters but the launch gives %zu arguments", entry->name,
          entry->parameters, launch.arguments.size());
  for (size_t k = 0; k < launch.arguments.size(); ++k) {
    Argument::Kind kind_given = launch.arguments[k].kind;
    bool pointer = kind_given == Argument::pointer, map = kind_given == Argument::tensor_map;
    if (kind_given == Argument::structure || entry->kinds[k] == 's') {
      fit_structure(launch, k);
      continue;
    }
    if (pointer != (entry->kinds[k] == 'p') || map != (entry->kinds[k] == 'm'))
      fault("constraints", "parameter %zu of %s is a %s but the launch gives a %s", k + 1, entry->name,
            entry->kinds[k] == 'p'   ? "pointer"
            : entry->kinds[k] == 'm' ? "tensor map"
                                     : "number",
            pointer ? "tensor" : map ? "tensor map" : "number");
    if (pointer || map) continue;
    // A real card gets the bytes of the scalar unconverted.
    const Scalar& scalar = launch.scalars[k];
    bool real = launch.arguments[k].kind == Argument::real;
    char kind = !real ? 'i' : scalar.type == "bfloat16" ? 'b' : 'f';
    if (entry->kinds[k] != kind || entry->sizes[k] != scalar.bytes)
      fault("constraints", "parameter %zu of %s is %s number of %d bytes but the scalar %s is %s",
            k + 1, entry->name,
            entry->kinds[k] == 'f'   ? "a floating"
            : entry->kinds[k] == 'b' ? "a bfloat16"
                                     : "an integer",
            (int)entry->sizes[k], scalar.name.c_str(), scalar.type.c_str());
  }
  unsigned threads = launch.block.x * launch.block.y * launch.block.z;
  if (entry->most_threads && threads > (unsigned)entry->most_threads)
    fault("constraints", "%s has %u threads a block; its __launch_bounds__ allow %d", entry->name,
          threads, entry->most_threads);
  Index cluster = cluster_of(*entry), grid = launch.grid;
  if (blocks_of(cluster) < 1 || blocks_of(cluster) > most_blocks_of_cluster)
    fault("constraints", "%s has clusters of %u x %u x %u blocks; there may be 1 to %u in one", entry->name,
          cluster.x, cluster.y, cluster.z, most_blocks_of_cluster);
  if (grid.x % cluster.x || grid.y % cluster.y || grid.z % cluster.z)
    fault("constraints", "%s is launched with %u x %u x %u blocks, which clusters of %u x %u x %u do not divide",
          entry->name, grid.x, grid.y, grid.z, cluster.x, cluster.y, cluster.z);
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

void run_all(const Launch& launch, const Sample* except, uint64_t stride) {
  Scheduler scheduler{entry, &launch, poison_shared, false};
  Sequence blocks(clusters_of(launch, *entry), stride, except);
  Resident resident(scheduler);
  while (resident.run_one(blocks, plan.order_seed)) {}
}

// A block costs about as much as this many accesses, apart from its own.
constexpr uint64_t block_accesses = 64;

Traffic sum(Traffic one, const Traffic& other, uint64_t sign) {
  one.global_read += sign * other.global_read;
  one.global_written += sign * other.global_written;
  one.shared_read += sign * other.shared_read;
  one.shared_written += sign * other.shared_written;
  one.global_updated += sign * other.global_updated;
  one.shared_updated += sign * other.shared_updated;
  one.distinct_sectors += sign * other.distinct_sectors;
  one.load_intervals += sign * other.load_intervals;
  one.barriers += sign * other.barriers;
  return one;
}

// What the blocks that have ended have accessed. Blocks that may wait for others take turns, and
// what has begun and not ended must not count.
class Ended {
 public:
  uint64_t blocks = 0;
  Traffic traffic{};

  // A block has run, the one with this slot.
  void add(unsigned slot, bool has_ended) {
    Traffic after = cuhost_hooks.traffic();
    if (slot >= begun.size()) begun.resize(slot + 1);
    begun[slot] = sum(sum(begun[slot], after, 1), before, (uint64_t)-1);
    before = after;
    if (!has_ended) return;
    traffic = sum(traffic, begun[slot], 1);
    begun[slot] = {};
    ++blocks;
  }

 private:
  std::vector<Traffic> begun;  // by slot
  Traffic before = cuhost_hooks.traffic();
};

void print_profile(const Ended& ended, uint64_t blocks) {
  const Traffic& t = ended.traffic;
  printf("%s profile %llu %llu %llu %llu %llu %llu %llu %llu %zu %llu %llu %llu %llu", plan.token,
         (unsigned long long)ended.blocks,
         (unsigned long long)t.global_read, (unsigned long long)t.global_written,
         (unsigned long long)t.shared_read, (unsigned long long)t.shared_written,
         (unsigned long long)t.global_updated, (unsigned long long)t.shared_updated,
         (unsigned long long)t.barriers, static_shared_bytes(),
         (unsigned long long)t.distinct_sectors, (unsigned long long)t.load_intervals,
         (unsigned long long)cuhost_hooks.traffic().warps,
         (unsigned long long)cuhost_hooks.contention(ended.blocks, blocks));
  const WarpTally* warps = cuhost_hooks.warps();
  for (const WarpTally* sum = warps; sum != warps + access_kinds; ++sum)
    printf(" %llu %llu %llu", (unsigned long long)sum->bytes, (unsigned long long)sum->requests,
           (unsigned long long)sum->parts);
}

// The first blocks make the profile; further ones are only checked. Threads start in ascending
// order in one block and in descending order in the next, because some races show in one of them.
// Returns whether all blocks were checked.
bool check(const Launch& launch, bool last, bool reports) {
  Scheduler scheduler{entry, &launch, poison_and_report, true};
  cuhost_hooks.launch_begins(launch);
  Sample sample(clusters_of(launch, *entry));
  Resident resident(scheduler);
  Ended ended;
  bool profiled = false;
  while (Resident::Step step = resident.run_one(sample, plan.order_seed ^ (sample.size() & 1))) {
    if (!last && resident.any_gave_way()) sample.take_all();
    cuhost_hooks.block_pauses();
    ended.add(resident.last_slot(), step == Resident::ended);
    if (step != Resident::ended) continue;
    uint64_t blocks = ended.blocks;
    uint64_t accesses = cuhost_hooks.traffic().accesses;
    if (!profiled && (blocks == plan.profiled_blocks || accesses > plan.profiled_accesses)) {
      if (reports) print_profile(ended, blocks_of(launch.grid));
      cuhost_hooks.profiled();
      profiled = true;
    }
    if (profiled && accesses + blocks * block_accesses > plan.access_budget) sample.end();
  }
  cuhost_hooks.launch_ends();
  if (reports && !profiled) print_profile(ended, blocks_of(launch.grid));
  uint64_t blocks = ended.blocks;
  if (reports) printf(" %llu\n", (unsigned long long)blocks);
  if (last || blocks == blocks_of(launch.grid)) return blocks == blocks_of(launch.grid);
  // Later launches need all results of this one: run the other blocks unchecked.
  take(cuhost_table, launch);
  run_all(launch, &sample, 1);
  return false;
}

void begin(const Launch& launch, const Table& from) {
  take(from, launch);
  running_kernel = entry->name;
  fit(launch);
  map_dynamic_shared(launch.shared_bytes, (size_t)entry->shared_alignment);
}

bool check_launches(bool reports) {
  bool all = true;
  poison_workspaces();
  restore_contents();
  for (const Launch& launch : plan.launches) {
    begin(launch, cuhost_checked_table);
    all &= check(launch, &launch == &plan.launches.back(), reports);
    check_guards();
  }
  return all;
}

// Where threads were interrupted and others stored something meanwhile, or a thread did not see another block's
// last store, no output may depend on it. That shows only if all blocks have run.
void check_all() {
  keep_contents();
  std::vector<std::string> variables;
  for (const Variable& variable : variables_of(checked_build)) variables.emplace_back(variable.begin, variable.bytes);
  if (!check_launches(true)) return;
  const char *interrupted = cuhost_hooks.first_interruption(), *hidden = cuhost_hooks.last_earlier_value();
  // As before, but that no thread sees earlier values or, also, is interrupted.
  auto differs_without = [&](bool interruptions) {
    Outcome outcome;
    cuhost_hooks.allow_earlier_values(false);
    cuhost_hooks.allow_interruptions(interruptions);
    forget_stores();
    for (size_t k = 0; k < variables.size(); ++k)
      memcpy(variables_of(checked_build)[k].begin, variables[k].data(), variables[k].size());
    check_launches(false);
    return outcome.difference();
  };
  std::string element = hidden ? differs_without(true) : "";
  if (!element.empty())
    fault("correctness", "%s depends on whether %s, and no fence orders blocks: call __threadfence() between a store "
          "and what tells others of it", element.c_str(), hidden);
  if (interrupted) element = differs_without(false);
  if (!element.empty())
    fault("correctness", "%s depends on the order of threads: on whether others run before %s", element.c_str(),
          interrupted);
}

void run_all_launches(uint64_t stride, bool zeroed) {
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

void answer(uint64_t count, double spent) {
  printf("%s ran %llu %.6f\n", plan.token, (unsigned long long)count, spent);
  if (fflush(stdout)) _exit(71);  // the kernel has closed it
}

// Checks the accesses that are made with what the tensors hold now.
void inspect(const Runs& runs) {
  double began = cpu_seconds();
  plan.order_seed = runs.seed;
  cuhost_hooks.allow_interruptions(false);
  cuhost_hooks.allow_earlier_values(false);
  forget_stores();
  keep_contents();
  cuhost_hooks.record_comparisons(true);
  bool all = check_launches(false);
  cuhost_hooks.print_comparisons();
  if (all) cuhost_hooks.print_unread();
  answer(1, cpu_seconds() - began);
}

void check_repetition(const Outcome& first, uint64_t count) {
  std::string element = first.difference();
  if (!element.empty())
    fault("correctness", "Correct at first, wrong in launch %llu of those that were repeated: %s is not what the first "
          "of them left", (unsigned long long)count, element.c_str());
}

// What the build leaves whose local variables hold something else at first; outputs are as before.
Outcome run_other_build(const Runs& runs, bool zeroed) {
  Outcome start;
  uint64_t so_far = launches_so_far();
  poison_workspaces();
  restore_contents();
  run_all_launches(runs.stride, zeroed);
  Outcome result;
  repeat_launches(so_far);
  start.restore();
  return result;
}

void check_locals(const Outcome& other) {
  std::string element = other.difference();
  if (!element.empty())
    fault("correctness", "%s depends on what a local variable of %s holds that was declared without a value and not "
          "set, on some path through the text", element.c_str(), running_kernel);
}

// After a run that took longer, a run makes do with one build. They take turns then.
constexpr double affordable_seconds = 1;
double latest_seconds = 0;

// Device variables and workspaces keep their contents from run to run. Several runs start from the same outputs,
// so that each has to leave the same ones.
void run(const Runs& runs) {
  plan.order_seed = runs.seed;
  bool at_end = runs.fresh && runs.seed;  // more kernels go too far than begin too early
  if (at_end) move_tensors();
  bool zeroed = &cuhost_zeroed_table && plan.order_seed & 1;
  std::optional<Outcome> start, first, other;
  keep_contents();
  if (runs.most > 1) start.emplace();
  if (&cuhost_zeroed_table && runs.fresh && latest_seconds < affordable_seconds)
    other.emplace(run_other_build(runs, !zeroed));
  if (runs.fresh) poison_workspaces();
  double began = cpu_seconds(), spent;
  uint64_t count = 0;
  do {
    restore_contents();
    if (count) start->restore();
    run_all_launches(runs.stride, zeroed);
    ++count;
    if (other) check_locals(*other);
    other.reset();
    if (start && !first) first.emplace();
    else if (start && !first->is_same()) check_repetition(*first, count);
    spent = cpu_seconds() - began;
  } while (count < runs.most && spent < runs.budget_seconds);
  if (at_end) move_tensors();
  latest_seconds = spent / (double)count;
  answer(count, spent);
}

}  // namespace
}  // namespace cuhost

int main() {
  using namespace cuhost;
  read_plan();
  map_tensors();
  install_signal_handlers();
  if (plan.check && !plan.inspect) {
    check_all();
  } else {
    for (Runs runs; read_runs(runs);) plan.inspect ? inspect(runs) : run(runs);
  }
  printf("%s done\n", plan.token);
  return 0;
}
