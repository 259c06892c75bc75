// The energy that a GPU takes, from NVML. Its library belongs to the NVIDIA driver and is opened at
// run time, so that programs build and run without it. Nothing on the card is ever set.
#pragma once

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

#include <dlfcn.h>

constexpr double HEAT_S = 1;        // before measuring, until the power is steady
constexpr double SENSOR_S = 1;      // the longest time over which cards average the power they show
constexpr double WINDOW_S = 2;      // at least
constexpr double PATIENCE_S = 0.6;  // for a step of the counter, which comes every 20 to 100 ms
constexpr double POLL_S = 0.001;    // between reads: reading all the time disturbs the counter
constexpr double SAMPLE_S = 0.01;   // between samples of the power, which changes more slowly

constexpr char RESET[] = "the GPU's energy counter ran backwards";

static double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static void sleep_s(double time) {
  std::this_thread::sleep_for(std::chrono::duration<double>(time));
}

// The energy counter of one GPU, in mJ (nvmlDeviceGetTotalEnergyConsumption), or the power that it
// shows where there is no counter (nvmlDeviceGetPowerUsage).
class EnergySource {
 public:
  explicit EnergySource(const std::string& uuid) { open(uuid); }

  // Why there is no energy, or an empty text.
  const std::string& problem() const { return problem_; }

  // Why the power is sampled in place of the counter, or an empty text if there is one.
  const std::string& no_counter() const { return no_counter_; }

  // Power in W. Check problem() afterwards.
  double power_w() {
    unsigned power_mw = 0;
    succeeds(power_(gpu_, &power_mw), "the GPU's power cannot be read");
    return power_mw * 1e-3;
  }

  // Energy in mJ since the driver was loaded. Check problem() afterwards.
  unsigned long long read() {
    unsigned long long energy_mj = 0;
    succeeds(read_(gpu_, &energy_mj), "the GPU's energy counter cannot be read");
    return energy_mj;
  }

  void fail(const std::string& problem) { problem_ = problem; }

 private:
  void open(const std::string& uuid) {
    library_ = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (library_ == nullptr) {
      return fail("NVML (libnvidia-ml.so.1, of the NVIDIA driver) cannot be loaded");
    }
    int (*init)() = nullptr;
    int (*handle_of)(const char*, void**) = nullptr;
    int (*mig_mode)(void*, unsigned*, unsigned*) = nullptr;
    if (!find(&init, "nvmlInit_v2") || !find(&message_, "nvmlErrorString") ||
        !find(&handle_of, "nvmlDeviceGetHandleByUUID")) {
      return;
    }
    if (!succeeds(init(), "NVML does not start")) return;
    if (!succeeds(handle_of(uuid.c_str(), &gpu_), "NVML does not know " + uuid)) return;
    unsigned current = 0, pending = 0;
    const bool has_mig = find(&mig_mode, "nvmlDeviceGetMigMode");
    problem_.clear();  // older drivers lack the function, and other cards the mode
    if (has_mig && mig_mode(gpu_, &current, &pending) == 0 && current != 0) {
      return fail("the GPU is in MIG mode, whose instances share one energy counter");
    }
    if (find(&read_, "nvmlDeviceGetTotalEnergyConsumption")) read();
    if (problem_.empty()) return;
    no_counter_ = problem_;
    if (find(&power_, "nvmlDeviceGetPowerUsage")) {
      problem_.clear();
      power_w();
    }
    if (!problem_.empty()) problem_ = no_counter_;
  }

  template <typename F>
  bool find(F** function, const char* name) {
    *function = reinterpret_cast<F*>(dlsym(library_, name));
    if (*function == nullptr) fail(std::string("NVML is too old: it has no ") + name);
    return *function != nullptr;
  }

  bool succeeds(int status, const std::string& otherwise) {
    if (status != 0) fail(otherwise + " (" + message_(status) + ")");
    return status == 0;
  }

  void* library_ = nullptr;
  void* gpu_ = nullptr;
  const char* (*message_)(int) = nullptr;
  int (*read_)(void*, unsigned long long*) = nullptr;
  int (*power_)(void*, unsigned*) = nullptr;
  std::string problem_, no_counter_;
};

// A step of the counter, and how many replays had ended by then.
struct Edge {
  double time_s = 0;
  unsigned long long energy_mj = 0;
  int ended = 0;
};

// Waits for a step of the counter. A window with other ends would be off by up to a step at each.
template <typename Replays>
static Edge next_edge(EnergySource& counter, Replays& replays) {
  double before_s = now_s();
  const double deadline_s = before_s + PATIENCE_S;
  const unsigned long long old_mj = counter.read();
  while (counter.problem().empty()) {
    sleep_s(POLL_S);
    const int ended = replays.keep_busy();
    const double begin_s = now_s();
    const unsigned long long energy_mj = counter.read();
    const double end_s = now_s();
    if (!counter.problem().empty()) break;
    if (energy_mj > old_mj) return {(before_s + end_s) / 2, energy_mj, ended};
    if (energy_mj < old_mj) counter.fail(RESET);
    if (begin_s > deadline_s) counter.fail("the GPU's energy counter does not move");
    before_s = begin_s;
  }
  return {};
}

struct Energy {
  double power_w, seconds;
  int first, last;  // replays between whose ends the window lies
};

// Keeps the GPU busy for a time, and until so many replays have ended.
template <typename Replays>
static void run_s(Replays& replays, double seconds, int least) {
  const double end_s = now_s() + seconds;
  while (now_s() < end_s || replays.keep_busy() < least) {
    replays.keep_busy();
    sleep_s(POLL_S);
  }
}

// The mean of power samples, for cards without a counter; as measure_energy().
template <typename Replays>
static Energy sample_power(EnergySource& source, Replays& replays) {
  run_s(replays, HEAT_S + SENSOR_S, 1);
  const int first = replays.keep_busy();
  const double begin_s = now_s();
  double last_s = begin_s, last_w = source.power_w(), energy_j = 0;
  int last = first;
  while (last_s - begin_s < WINDOW_S || last == first) {
    sleep_s(SAMPLE_S);
    last = replays.keep_busy();
    const double time_s = now_s(), power_w = source.power_w();
    if (!source.problem().empty()) return {};
    energy_j += (power_w + last_w) / 2 * (time_s - last_s);
    last_s = time_s;
    last_w = power_w;
  }
  return {energy_j / (last_s - begin_s), last_s - begin_s, first - 1, last - 1};
}

// The mean power of replays that follow one another without pause, between two steps of the
// counter. Check the source's problem() afterwards.
template <typename Replays>
static Energy measure_energy(EnergySource& counter, Replays& replays) {
  if (!counter.no_counter().empty()) return sample_power(counter, replays);
  run_s(replays, HEAT_S, 1);
  const Edge begin = next_edge(counter, replays);
  if (!counter.problem().empty()) return {};
  run_s(replays, WINDOW_S, begin.ended + 1);
  const Edge end = next_edge(counter, replays);
  if (end.energy_mj <= begin.energy_mj && counter.problem().empty()) counter.fail(RESET);
  if (!counter.problem().empty()) return {};
  const double seconds = end.time_s - begin.time_s;
  const double energy_mj = double(end.energy_mj - begin.energy_mj);
  return {energy_mj * 1e-3 / seconds, seconds, begin.ended - 1, end.ended - 1};
}
