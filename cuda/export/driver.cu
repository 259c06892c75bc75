// Runs one exported convolution kernel: checks it against a double-precision reference computed on
// the host, then times it by CUDA events over CUDA-graph replays.
//
//   nvcc -O3 -std=c++17 -arch=native -DLAUNCH_HEADER='"kernels/case1/kernel01.launch.cuh"' \
//     driver.cu -o case1_kernel01
//   ./case1_kernel01 [SEED]
//
// Exit code: 0 correct, 1 wrong, 2 CUDA or usage error.
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include <cuda_runtime.h>

struct Conv2dShape {
  int n, h, w, co, ci, kh, kw, stride, padding, dilation, groups;
  constexpr int oh() const { return (h + 2 * padding - dilation * (kh - 1) - 1) / stride + 1; }
  constexpr int ow() const { return (w + 2 * padding - dilation * (kw - 1) - 1) / stride + 1; }
  // Input and output channels of a group.
  constexpr int group_ci() const { return ci / groups; }
  constexpr int group_co() const { return co / groups; }
  constexpr size_t data_size() const { return size_t(n) * ci * h * w; }
  constexpr size_t weight_size() const { return size_t(co) * group_ci() * kh * kw; }
  constexpr size_t output_size() const { return size_t(n) * co * oh() * ow(); }
  // A multiplication and an addition for each tap.
  constexpr double flops() const { return 2.0 * output_size() * group_ci() * kh * kw; }
};

#define CHECK(call) check((call), #call)

static void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "driver: error: %s: %s\n", call, cudaGetErrorString(status));
  std::exit(2);
}

// Gives LABEL, SHAPE, MAX_RELATIVE_BOUND, NORMWISE_BOUND, WORKSPACES, WORKSPACE_BYTES, prepare()
// and launch().
#include LAUNCH_HEADER

constexpr int TRIALS = 11;
constexpr double TRIAL_MS = 50;
constexpr int MOST_LAUNCHES = 4096;

// Fills output rows of channel planes first, first + step, ...; sums in double.
static void reference_planes(const std::vector<float>& data, const std::vector<float>& weight,
                             std::vector<double>& output, int first, int step) {
  constexpr Conv2dShape s = SHAPE;
  for (int plane = first; plane < s.n * s.co; plane += step) {
    const int n = plane / s.co, co = plane % s.co;
    double* out = output.data() + size_t(plane) * s.oh() * s.ow();
    const int first_ci = co / s.group_co() * s.group_ci();
    for (int ci = 0; ci < s.group_ci(); ++ci) {
      const float* image = data.data() + (size_t(n) * s.ci + first_ci + ci) * s.h * s.w;
      for (int kh = 0; kh < s.kh; ++kh) {
        for (int kw = 0; kw < s.kw; ++kw) {
          const double tap = weight[((size_t(co) * s.group_ci() + ci) * s.kh + kh) * s.kw + kw];
          for (int oh = 0; oh < s.oh(); ++oh) {
            const int y = oh * s.stride + kh * s.dilation - s.padding;
            if (y < 0 || y >= s.h) continue;
            for (int ow = 0; ow < s.ow(); ++ow) {
              const int x = ow * s.stride + kw * s.dilation - s.padding;
              if (x >= 0 && x < s.w) out[size_t(oh) * s.ow() + ow] += tap * image[size_t(y) * s.w + x];
            }
          }
        }
      }
    }
  }
}

static std::vector<double> reference(const std::vector<float>& data,
                                     const std::vector<float>& weight) {
  std::vector<double> output(SHAPE.output_size(), 0.0);
  const int workers = std::max(1u, std::thread::hardware_concurrency());
  std::vector<std::thread> threads;
  for (int worker = 0; worker < workers; ++worker) {
    threads.emplace_back([&, worker] { reference_planes(data, weight, output, worker, workers); });
  }
  for (std::thread& thread : threads) thread.join();
  return output;
}

struct Errors {
  double max_relative, normwise;
  // A comparison with NaN is false, so an output that was never written counts as wrong.
  bool within_bounds() const {
    return max_relative <= MAX_RELATIVE_BOUND && normwise <= NORMWISE_BOUND;
  }
};

static Errors compare(const std::vector<float>& output, const std::vector<double>& expected) {
  double largest = 0, worst = 0, square = 0, error_square = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = std::fabs(output[i] - expected[i]);
    largest = std::max(largest, std::fabs(expected[i]));
    if (error > worst || std::isnan(error)) worst = error;  // once NaN, it stays
    square += expected[i] * expected[i];
    error_square += error * error;
  }
  return {worst / largest, std::sqrt(error_square / square)};
}

template <typename T>
static T* to_device(const std::vector<T>& values) {
  T* pointer = nullptr;
  CHECK(cudaMalloc(&pointer, values.size() * sizeof(T)));
  CHECK(cudaMemcpy(pointer, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return pointer;
}

class Timer {
 public:
  Timer(float* data, float* weight, float* output, void* const* workspaces)
      : data_(data), weight_(weight), output_(output), workspaces_(workspaces) {
    CHECK(cudaStreamCreate(&stream_));
    CHECK(cudaEventCreate(&begin_));
    CHECK(cudaEventCreate(&end_));
  }

  // Milliseconds per launch: the median of TRIALS replays of about TRIAL_MS each.
  double median_ms(int* launches) {
    *launches = 16;
    record(*launches);
    replay_ms();  // the first replay uploads the graph
    const double estimate = replay_ms() / *launches;
    *launches = std::min(MOST_LAUNCHES, std::max(1, int(TRIAL_MS / estimate)));
    record(*launches);
    std::vector<double> times;
    for (int trial = -2; trial < TRIALS; ++trial) {
      const double time = replay_ms();
      if (trial >= 0) times.push_back(time / *launches);  // two to warm up
    }
    std::nth_element(times.begin(), times.begin() + TRIALS / 2, times.end());
    return times[TRIALS / 2];
  }

 private:
  void record(int launches) {
    cudaGraph_t graph;
    CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < launches; ++i) launch(data_, weight_, output_, workspaces_, stream_);
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

  float *data_, *weight_, *output_;
  void* const* workspaces_;
  cudaStream_t stream_;
  cudaEvent_t begin_, end_;
  cudaGraphExec_t graph_ = nullptr;
};

static std::vector<float> standard_normal(size_t size, std::mt19937_64& generator) {
  std::normal_distribution<float> distribution;
  std::vector<float> values(size);
  for (float& value : values) value = distribution(generator);
  return values;
}

int main(int argc, char** argv) {
  unsigned long long seed = 0;
  if (argc > 1) {
    char* rest = nullptr;
    errno = 0;
    seed = std::strtoull(argv[1], &rest, 10);
    if (argc > 2 || errno != 0 || rest == argv[1] || *rest != '\0') {
      std::fprintf(stderr, "usage: %s [SEED]\n", argv[0]);
      return 2;
    }
  }
  std::mt19937_64 generator(seed);
  const std::vector<float> data = standard_normal(SHAPE.data_size(), generator);
  const std::vector<float> weight = standard_normal(SHAPE.weight_size(), generator);
  std::vector<float> output(SHAPE.output_size());

  cudaDeviceProp gpu;
  CHECK(cudaGetDeviceProperties(&gpu, 0));
  float* gpu_data = to_device(data);
  float* gpu_weight = to_device(weight);
  float* gpu_output = to_device(output);
  const size_t output_bytes = output.size() * sizeof(float);
  CHECK(cudaMemset(gpu_output, 0xFF, output_bytes));  // NaN wherever the kernel writes nothing
  void* workspaces[WORKSPACES + 1] = {};
  for (int i = 0; i < WORKSPACES; ++i) CHECK(cudaMalloc(&workspaces[i], WORKSPACE_BYTES[i]));

  CHECK(prepare());
  launch(gpu_data, gpu_weight, gpu_output, workspaces, nullptr);
  CHECK(cudaGetLastError());
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaMemcpy(output.data(), gpu_output, output_bytes, cudaMemcpyDeviceToHost));
  const Errors errors = compare(output, reference(data, weight));

  std::printf("%s on %s\n", LABEL, gpu.name);
  std::printf("max error %.2e (bound %.2e), normwise %.2e (bound %.2e): %s\n", errors.max_relative,
              MAX_RELATIVE_BOUND, errors.normwise, NORMWISE_BOUND,
              errors.within_bounds() ? "correct" : "WRONG");
  if (!errors.within_bounds()) return 1;

  int launches = 0;
  const double time_ms = Timer(gpu_data, gpu_weight, gpu_output, workspaces).median_ms(&launches);
  std::printf("time %.6f ms, %.1f GFLOP/s (median of %d replays of %d launches)\n", time_ms,
              SHAPE.flops() / time_ms * 1e-6, TRIALS, launches);
  return 0;
}
