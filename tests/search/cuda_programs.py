"""CUDA programs for tests, each with a kernel among much else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

from pytest_gpuenergy.search import ExtractedKernel, extract

PROGRAM = """
// A program that scales a vector.
#include <cstdio>
#include <cuda.h>
#include <cuda_fp16.h>
#include "helpers.h"

#define BLOCK 256
#define CHECK(call) do { \\
    if ((call) != cudaSuccess) { printf("%s:%d\\n", __FILE__, __LINE__); exit(1); } \\
  } while (0)
#define FOR_EACH(i, n)                                         \\
  for (index_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; \\
       i += gridDim.x * blockDim.x)
#ifdef DOUBLE_PRECISION
  typedef double real;
#else
  typedef float real;
#endif

using index_t = int;
constexpr int WAYS = 2 * 2;
enum class Mode { PLAIN, SQUARED };
struct Pair { real one, two; };
float result;  // of the host

static inline __device__ void add_to(int* place, int value) { atomicAdd(place, value); }

template <typename T>
__device__ T square(T value) { return value * value; }

void report(float value) { printf("%f\\n", value); }

/* Scales, and counts. */
template <typename T, Mode MODE, int STEP = 1>
__global__ void scale(const T* __restrict__ x, T* y, int* count, T by, index_t n)
{
  FOR_EACH(i, n) {
    T value = x[i] * by;  // scaled
    if (MODE == Mode::SQUARED) {
      value = square(value);
    }
    y[i] = value * STEP + WAYS;
    add_to(count, 1);
  }
}

__global__ void other(float* y) { y[threadIdx.x] = HELP; }

int main(int argc, char** argv) {
  float* x;
  CHECK(cudaMalloc(&x, BLOCK));
  scale<float, Mode::PLAIN><<<1, BLOCK>>>(x, x, nullptr, 2.0f, BLOCK);
  report(result);
  return 0;
}
"""
HELPERS = """
#pragma once
#include <vector>
#define HELP 3.5f
std::vector<int> numbers();
"""
FILES = {"src/main.cu": PROGRAM, "src/helpers.h": HELPERS}


def taken(
    entry: str,
    files: str | Mapping[str, str] = FILES,
    constants: Mapping[str, object] | None = None,
) -> ExtractedKernel:
    """What is taken out of ``src/main.cu``, whose text can stand for all files."""
    texts = {"src/main.cu": files} if isinstance(files, str) else files

    def read(path: PurePosixPath) -> str | None:
        return texts.get(str(path))

    return extract(PurePosixPath("src/main.cu"), entry, read, constants or {})
