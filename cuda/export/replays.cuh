// Replays of a CUDA graph of launches of the exported kernel, and their times.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda_runtime.h>

#define CHECK(call) check((call), #call)

static void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "driver: error: %s: %s\n", call, cudaGetErrorString(status));
  std::exit(2);
}

// In kernelNN.launch.cu, which contains the kernel.
namespace exported {
cudaError_t prepare();
void launch(void* const* tensors, void* const* workspaces, cudaStream_t stream);
}  // namespace exported

constexpr int TRIALS = 11;
constexpr double TRIAL_MS = 50;
constexpr int MOST_LAUNCHES = 4096;
constexpr int IN_FLIGHT = 3;  // replays that are queued, so that the GPU never waits for the host

// Replays of a CUDA graph of launches.
class Replays {
 public:
  Replays(void* const* tensors, void* const* workspaces)
      : tensors_(tensors), workspaces_(workspaces) {
    CHECK(cudaStreamCreate(&stream_));
    CHECK(cudaEventCreate(&begin_));
    CHECK(cudaEventCreate(&end_));
  }

  // Launches in one replay.
  int launches() const { return launches_; }

  // Milliseconds per launch: the median of TRIALS replays of about TRIAL_MS each.
  double median_ms() {
    record(16);
    replay_ms();  // the first replay uploads the graph
    const double estimate = replay_ms() / launches_;
    record(std::min(MOST_LAUNCHES, std::max(1, int(TRIAL_MS / estimate))));
    std::vector<double> times;
    for (int trial = -2; trial < TRIALS; ++trial) {
      const double time = replay_ms();
      if (trial >= 0) times.push_back(time / launches_);  // two to warm up
    }
    std::nth_element(times.begin(), times.begin() + TRIALS / 2, times.end());
    return times[TRIALS / 2];
  }

  // Queues replays so that IN_FLIGHT have not ended. Returns how many have.
  int keep_busy() {
    while (ended_ < int(ends_.size())) {
      const cudaError_t status = cudaEventQuery(ends_[ended_]);
      if (status == cudaErrorNotReady) break;
      CHECK(status);
      ++ended_;
    }
    while (int(ends_.size()) < ended_ + IN_FLIGHT) {
      cudaEvent_t end;
      CHECK(cudaEventCreate(&end));
      CHECK(cudaGraphLaunch(graph_, stream_));
      CHECK(cudaEventRecord(end, stream_));
      ends_.push_back(end);
    }
    return ended_;
  }

  // Milliseconds per launch from the end of one replay of keep_busy() to that of a later one.
  double ms_between(int first, int last) {
    float elapsed = 0;
    CHECK(cudaEventElapsedTime(&elapsed, ends_[first], ends_[last]));
    return double(elapsed) / (last - first) / launches_;
  }

 private:
  void record(int launches) {
    launches_ = launches;
    cudaGraph_t graph;
    CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < launches; ++i) exported::launch(tensors_, workspaces_, stream_);
    CHECK(cudaStreamEndCapture(stream_, &graph));
    if (graph_ != nullptr) CHECK(cudaGraphExecDestroy(graph_));
    CHECK(cudaGraphInstantiateWithFlags(&graph_, graph, 0));
    CHECK(cudaGraphDestroy(graph));
  }

  double replay_ms() {
    float elapsed = 0;
    CHECK(cudaEventRecord(begin_, stream_));
    CHECK(cudaGraphLaunch(graph_, stream_));
    CHECK(cudaEventRecord(end_, stream_));
    CHECK(cudaEventSynchronize(end_));
    CHECK(cudaEventElapsedTime(&elapsed, begin_, end_));
    return elapsed;
  }

  void* const* tensors_;
  void* const* workspaces_;
  cudaStream_t stream_;
  cudaEvent_t begin_, end_;
  cudaGraphExec_t graph_ = nullptr;
  int launches_ = 0, ended_ = 0;
  std::vector<cudaEvent_t> ends_;  // of the replays of keep_busy()
};
