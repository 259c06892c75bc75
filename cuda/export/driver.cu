// Runs one exported kernel: checks it against a double-precision reference computed on the host,
// then times it with CUDA events around CUDA-graph replays, and measures its energy with NVML.
//
//   nvcc -O3 -std=c++17 -arch=native driver.cu kernels/case1/kernel01.launch.cu -o case1_kernel01
//     -ldl -DWORKLOAD_HEADER='"kernels/case1/kernel01.workload.cuh"'
//   ./case1_kernel01 [--launches N] [SEED]
//
// For a kernel that takes the instructions of Hopper alone, for which CMakeLists.txt names 90a, give
// nvcc -gencode=arch=compute_90a,code=sm_90a instead of -arch=native.
//
// With --launches it launches N times, checks the result and measures nothing, as a profiler needs.
// Exit code: 0 correct, 1 wrong, 2 CUDA or usage error.
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "energy.cuh"
#include "replays.cuh"

enum class Type { float16, bfloat16, float32, float64, int32, int64 };

// How floating-point inputs are drawn: standard normal; from -1 to 1; whole numbers from -4 to 4;
// all equal; standard normal in ascending order; standard normal with a share of zeros. Their bits
// decide about tens of percent of the power.
enum class Inputs { NORMAL, UNIFORM, INTEGERS, ONES, ZEROS, SORTED, SPARSE };

// A tensor of the workload. The bounds apply to outputs: the largest errors of a correct kernel,
// for the worst element relative to the largest one, and for the norm.
struct Tensor {
  const char* name;
  Type type;
  size_t size;  // elements
  bool is_output;
  double max_relative_bound, normwise_bound;
};

// The elements of all tensors, in order, as doubles: what a reference reads and fills.
using Values = std::vector<std::vector<double>>;

// Defines LABEL, FLOPS, INPUTS, SHARE_OF_ZEROS, TENSORS, WORKSPACES and WORKSPACE_BYTES, and
// includes the reference for the workload's kind: void reference(Values&, int worker, int workers).
// Several threads call it concurrently, and each computes its share of the outputs, which start at
// zero. It sets to NaN what a kernel must not write.
#include WORKLOAD_HEADER

constexpr int COUNT = sizeof(TENSORS) / sizeof(Tensor);

// Calls f with a null pointer to the C++ type of a tensor.
template <typename F>
static auto with_type(Type type, F f) {
  switch (type) {
    case Type::float16: return f(static_cast<half*>(nullptr));
    case Type::bfloat16: return f(static_cast<nv_bfloat16*>(nullptr));
    case Type::float64: return f(static_cast<double*>(nullptr));
    case Type::int32: return f(static_cast<int32_t*>(nullptr));
    case Type::int64: return f(static_cast<int64_t*>(nullptr));
    default: return f(static_cast<float*>(nullptr));
  }
}

// The value of an element. Types of 16 bits convert to float only.
template <typename T>
static double number(T value) {
  if constexpr (sizeof(T) == 2) {
    return double(float(value));
  } else {
    return double(value);
  }
}

static size_t bytes_of(const Tensor& tensor) {
  return with_type(tensor.type, [&](auto* p) { return tensor.size * sizeof(*p); });
}

// One floating-point input, before it is sorted.
template <typename T>
static T draw_one(std::mt19937_64& generator) {
  if (INPUTS == Inputs::ZEROS || INPUTS == Inputs::ONES) return INPUTS == Inputs::ONES;
  if (INPUTS == Inputs::UNIFORM) return std::uniform_real_distribution<T>(-1, 1)(generator);
  if (INPUTS == Inputs::INTEGERS) return T(std::uniform_int_distribution<>(-4, 4)(generator));
  if (INPUTS == Inputs::SPARSE && std::bernoulli_distribution(SHARE_OF_ZEROS)(generator)) return 0;
  return std::normal_distribution<T>()(generator);
}

// Draws an input: according to INPUTS, or integers from 0 to 127. Returns its bytes.
static std::vector<unsigned char> draw(const Tensor& tensor, std::vector<double>& values,
                                       std::mt19937_64& generator) {
  std::vector<unsigned char> bytes(bytes_of(tensor));
  with_type(tensor.type, [&](auto* p) {
    using T = std::remove_pointer_t<decltype(p)>;
    constexpr bool is_integer = std::is_integral_v<T>;
    using Drawn = std::conditional_t<std::is_same_v<T, double>, double, float>;
    for (double& value : values) {
      value = is_integer ? std::uniform_int_distribution<>(0, 127)(generator)
                         : double(draw_one<Drawn>(generator));
    }
    if (!is_integer && INPUTS == Inputs::SORTED) std::sort(values.begin(), values.end());
    for (size_t i = 0; i < tensor.size; ++i) {
      const T value = T(Drawn(values[i]));
      std::memcpy(&bytes[i * sizeof(T)], &value, sizeof(T));
      values[i] = number(value);
    }
  });
  return bytes;
}

static void compute_reference(Values& values) {
  const int workers = std::max(1u, std::thread::hardware_concurrency());
  std::vector<std::thread> threads;
  for (int worker = 0; worker < workers; ++worker) {
    threads.emplace_back([&, worker] { reference(values, worker, workers); });
  }
  for (std::thread& thread : threads) thread.join();
}

// Compares an output with its reference and prints its errors.
static bool is_correct(const Tensor& tensor, const std::vector<unsigned char>& bytes,
                       const std::vector<double>& expected) {
  double largest = 0, worst = 0, square = 0, error_square = 0;
  size_t overwritten = 0;
  with_type(tensor.type, [&](auto* p) {
    using T = std::remove_pointer_t<decltype(p)>;
    for (size_t i = 0; i < tensor.size; ++i) {
      T value;
      std::memcpy(&value, &bytes[i * sizeof(T)], sizeof(T));
      if (std::isnan(expected[i])) {
        const unsigned char* byte = &bytes[i * sizeof(T)];
        overwritten += std::any_of(byte, byte + sizeof(T), [](int b) { return b != 0xFF; });
        continue;
      }
      const double error = std::fabs(number(value) - expected[i]);
      largest = std::max(largest, std::fabs(expected[i]));
      if (error > worst || std::isnan(error)) worst = error;  // once NaN, it stays
      square += expected[i] * expected[i];
      error_square += error * error;
    }
  });
  const double max_relative = worst / (largest ? largest : 1);
  const double normwise = std::sqrt(error_square / (square ? square : 1));
  // A comparison with NaN is false, so an output that was never written counts as wrong.
  const bool good = max_relative <= tensor.max_relative_bound &&
                    normwise <= tensor.normwise_bound && overwritten == 0;
  if (overwritten > 0) {
    std::printf("%s: %zu elements are written that lie between its rows\n", tensor.name,
                overwritten);
  }
  std::printf("%s: max error %.2e (bound %.2e), normwise %.2e (bound %.2e): %s\n", tensor.name,
              max_relative, tensor.max_relative_bound, normwise, tensor.normwise_bound,
              good ? "correct" : "WRONG");
  return good;
}

// The name that NVML has for a GPU.
static std::string uuid_of(const cudaDeviceProp& gpu) {
  std::string text = "GPU";
  for (int i = 0; i < 16; ++i) {
    char byte[4];
    std::snprintf(byte, sizeof byte, "%02x", static_cast<unsigned char>(gpu.uuid.bytes[i]));
    const bool begins_group = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
    text += (begins_group ? "-" : "") + std::string(byte);
  }
  return text;
}

// Measures time and energy, and prints them, at last in the words that `gpuenergy report` reads.
static void measure(Replays& replays, const cudaDeviceProp& gpu) {
  double time_ms = replays.median_ms();
  std::printf("time %.6f ms, %.1f GFLOP/s (median of %d replays of %d launches)\n", time_ms,
              FLOPS / time_ms * 1e-6, TRIALS, replays.launches());
  EnergySource source(uuid_of(gpu));
  Energy energy = {};
  if (source.problem().empty()) energy = measure_energy(source, replays);
  CHECK(cudaDeviceSynchronize());
  const bool measured = source.problem().empty();
  if (measured) {
    time_ms = replays.ms_between(energy.first, energy.last);
    std::printf("energy %.5f mJ, mean power %.1f W (%.2f s, %d replays of %d launches)\n",
                energy.power_w * time_ms, energy.power_w, energy.seconds,
                energy.last - energy.first, replays.launches());
    if (!source.no_counter().empty()) {
      std::printf("energy from power samples: %s\n", source.no_counter().c_str());
    }
  } else {
    std::printf("energy not measured: %s\n", source.problem().c_str());
  }
  std::printf("GFLOP/s: %.6g\n", FLOPS / time_ms * 1e-6);
  if (measured) {
    std::printf("Mean energy per iteration: %.6g mJ\n", energy.power_w * time_ms);
  }
  std::printf("Mean time per iteration: %.6g ms\n", time_ms);
}

struct Arguments {
  unsigned long long seed = 0, launches = 0;
};

static unsigned long long whole(const char* text, const char* program) {
  char* rest = nullptr;
  errno = 0;
  const unsigned long long value = std::strtoull(text, &rest, 10);
  if (errno == 0 && rest != text && *rest == '\0') return value;
  std::fprintf(stderr, "usage: %s [--launches N] [SEED]\n", program);
  std::exit(2);
}

static Arguments parse(int argc, char** argv) {
  Arguments given;
  int next = 1;
  if (argc > 2 && std::strcmp(argv[1], "--launches") == 0) {
    given.launches = whole(argv[2], argv[0]);
    next = 3;
  }
  if (argc > next) given.seed = whole(argv[next], argv[0]);
  if (argc > next + 1) whole("", argv[0]);
  return given;
}

int main(int argc, char** argv) {
  const Arguments given = parse(argc, argv);
  std::mt19937_64 generator(given.seed);
  cudaDeviceProp gpu;
  CHECK(cudaGetDeviceProperties(&gpu, 0));
  Values values(COUNT);
  void* tensors[COUNT] = {};
  for (int i = 0; i < COUNT; ++i) {
    const Tensor& tensor = TENSORS[i];
    values[i].assign(tensor.size, 0.0);
    CHECK(cudaMalloc(&tensors[i], bytes_of(tensor)));
    if (tensor.is_output) {  // NaN or -1 where the kernel writes nothing
      CHECK(cudaMemset(tensors[i], 0xFF, bytes_of(tensor)));
    } else {
      const std::vector<unsigned char> bytes = draw(tensor, values[i], generator);
      CHECK(cudaMemcpy(tensors[i], bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
    }
  }
  void* workspaces[WORKSPACES + 1] = {};
  for (int i = 0; i < WORKSPACES; ++i) {
    CHECK(cudaMalloc(&workspaces[i], WORKSPACE_BYTES[i]));
    CHECK(cudaMemset(workspaces[i], 0xFF, WORKSPACE_BYTES[i]));  // a kernel must not need zeros
  }

  CHECK(exported::prepare());
  for (unsigned long long i = 0; i < std::max(1ull, given.launches); ++i) {
    exported::launch(tensors, workspaces, nullptr);
  }
  CHECK(cudaGetLastError());
  CHECK(cudaDeviceSynchronize());
  compute_reference(values);

  std::printf("%s on %s\n", LABEL, gpu.name);
  bool good = true;
  for (int i = 0; i < COUNT; ++i) {
    if (!TENSORS[i].is_output) continue;
    std::vector<unsigned char> bytes(bytes_of(TENSORS[i]));
    CHECK(cudaMemcpy(bytes.data(), tensors[i], bytes.size(), cudaMemcpyDeviceToHost));
    good = is_correct(TENSORS[i], bytes, values[i]) && good;
  }
  if (!good) return 1;

  Replays replays(tensors, workspaces);
  if (given.launches == 0) measure(replays, gpu);
  return 0;
}
