"""Moves on kernels that are written in other ways: groups of threads, hints, casts, and macros."""

from __future__ import annotations

import numpy as np
import pytest
from move_checks import check, only, spec_of, whats
from msgspec.structs import replace

from pytest_gpuenergy.search import KernelSpec

VECTORS, MATH = "vectorize_global_loads", "softmax_math_fusion"
BLOCKS, ATOMICS = "change_block_sizes", "avoid_atomics_reduce"
ROWS = """
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
__global__ void kernel(const float* x, float* y, int rows, int cols) {
  cg::thread_block_tile<32> warp = cg::tiled_partition<32>(cg::this_thread_block());
  int row = blockIdx.x * warp.meta_group_size() + warp.meta_group_rank();
  if (row >= rows) return;
  float sum = 0.0f;
  for (int c = warp.thread_rank(); c < cols; c += warp.size()) sum += x[row * cols + c];
  sum = cg::reduce(warp, sum, cg::plus<float>{});
  for (int c = warp.thread_rank(); c < cols; c += warp.size()) {
    y[row * cols + c] = __ldcs(x + row * cols + c) / sum;
  }
}
"""
OF_WARPS = (
    ROWS.replace(
        "cg::thread_block_tile<32> warp = cg::tiled_partition<32>(cg::this_thread_block());", ""
    )
    .replace("warp.meta_group_size()", "(blockDim.x / warpSize)")
    .replace("warp.meta_group_rank()", "threadIdx.x / warpSize")
    .replace("warp.thread_rank()", "threadIdx.x % warpSize")
    .replace("warp.size()", "warpSize")
    .replace(
        "sum = cg::reduce(warp, sum, cg::plus<float>{});",
        "for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);",
    )
)
SILU = """
__global__ void kernel(const float* x, float* y, unsigned long long n) {
  unsigned long long i = (unsigned long long)blockDim.x * blockIdx.x + threadIdx.x;
  if (i >= n) return;
  float v = x[i];
  y[i] = v * powf(v * v, 1.5f);
}
"""
STRIDED = """
__global__ void kernel(const float* x, float* y, int n) {
  const int step = blockDim.x;
  for (int i = threadIdx.x; i < n; i += step) y[blockIdx.x * n + i] = 2 * x[blockIdx.x * n + i];
}
"""
SINES = """
__global__ void kernel(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    float s, c;
    sincosf(x[i], &s, &c);
    y[i] = s * c;
  }
}
"""


def rows(source: str) -> KernelSpec:
    return spec_of(
        source,
        ["x[ROWS, COLS]", "> y[ROWS, COLS]"],
        scalars=["rows", "cols"],
        grid=("ceil_div(ROWS, 2)",),
        sizes=({"ROWS": 5, "COLS": 256}, {"ROWS": 4, "COLS": 77}),
    )


def elements(source: str) -> KernelSpec:
    return spec_of(
        source,
        ["x[N]", "> y[N]"],
        scalars=["n"],
        grid=("ceil_div(N, 64)",),
        sizes=({"N": 256}, {"N": 77}),
    )


def strided(source: str = STRIDED) -> KernelSpec:
    return spec_of(
        source,
        ["x[ROWS, N]", "> y[ROWS, N]"],
        scalars=["n"],
        grid=("ROWS",),
        sizes=({"ROWS": 3, "N": 256}, {"ROWS": 2, "N": 77}),
    )


class TestGroups:
    @pytest.mark.parametrize("source", [ROWS, OF_WARPS], ids=["cooperative groups", "warpSize"])
    def test_loops_that_a_warp_shares_are_recognized(self, source):
        text = only(VECTORS, rows(source), "by 4").source
        assert text.count("reinterpret_cast<const float4*>(") == 2
        assert "__ldcs(reinterpret_cast<const float4*>(x + row * cols + c_first))" in text

    @pytest.mark.slow
    @pytest.mark.parametrize("source", [ROWS, OF_WARPS], ids=["cooperative groups", "warpSize"])
    def test_they_are_right_afterwards(self, source):
        spec = rows(source)
        state = only(VECTORS, spec, "by 4")
        check(
            state,
            spec,
            lambda v: {"y": v["x"] / v["x"].sum(axis=1, keepdims=True)},
            init={"x": (0.5, 1.5)},
        )

    def test_ranks_in_a_block_of_rows_are_not_known(self):
        spec = rows(ROWS)
        launch = replace(spec.launch, block=(16, 4))
        assert whats(VECTORS, replace(spec, launch=launch)) == []

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("<32>(cg::this", "<size>(cg::this"),
            ("warp.size()) sum +=", "warp.size()) sum += warp.shfl(sum, 0) +"),
            ("warp.size()) sum +=", "warp.size()) sum += cg::reduce(warp, sum, plus) +"),
        ],
    )
    def test_what_is_not_known_of_a_group_leaves_its_loops_alone(self, old, new):
        assert old in ROWS
        assert not any("line 10" in what for what in whats(VECTORS, rows(ROWS.replace(old, new))))


class TestPlaces:
    def test_one_that_is_computed_in_the_body_keeps_the_names_of_the_block(self):
        source = """
        __global__ void kernel(const float* x, float* y, int n, int width) {
          int i = blockIdx.x * blockDim.x + threadIdx.x;
          if (i < n) {
            float sum = 0;
            for (int c = 0; c < width; ++c) {
              int at = i * width + c;
              sum += x[at];
            }
            y[i] = sum;
          }
        }
        """
        spec = spec_of(
            source,
            ["x[N, WIDTH]", "> y[N]"],
            scalars=["n", "width"],
            grid=("ceil_div(N, 64)",),
            sizes=({"N": 70, "WIDTH": 8},),
        )
        assert "(&x[(i * width + c_first)])" in only(VECTORS, spec, "loop 1 over c by 4").source


class TestCasts:
    def test_an_index_of_64_bits_is_recognized(self):
        state = only(VECTORS, elements(SILU), "4 elements per thread")
        assert "unsigned long long i_first" in state.source


class TestMath:
    def test_powers_have_a_fast_kind_of_their_own(self):
        assert "__powf(v * v, 1.5f)" in only(MATH, elements(SILU), "fast powers").source

    def test_sines_with_cosines_have_one_too(self):
        text = only(MATH, elements(SINES), "fast sines with cosines").source
        assert "__sincosf(x[i], &s, &c);" in text

    @pytest.mark.slow
    def test_fast_sines_are_right(self):
        spec = elements(SINES)
        state = only(MATH, spec, "fast sines with cosines")
        check(state, spec, lambda v: {"y": np.sin(v["x"]) * np.cos(v["x"])})


class TestBlocks:
    def test_a_kernel_that_strides_by_its_block_fits_any(self):
        assert whats(BLOCKS, strided()) == [
            f"block_x={threads}" for threads in (32, 128, 256, 512, 1024)
        ]

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("step = blockDim.x", "step = 64"),
            ("int i = threadIdx.x", "int i = threadIdx.x / 2"),
            ("const int step", "__shared__ float s[64];\n  const int step"),
            ("y[blockIdx.x * n + i] =", "y[blockIdx.x * n + threadIdx.x] ="),
            ("const int step", "y[0] = 1;\n  const int step"),
            ("const int step", "float sum = 0;\n  const int step"),
            ("= 2 * x", "= __shfl_sync(~0u, n, 0) * x"),
            ("= 2 * x", "= helper() * x"),
        ],
    )
    def test_one_that_may_not_is_left_alone(self, old, new):
        source = STRIDED.replace(old, new)
        assert source != STRIDED
        if "sum" in new:
            source = source.replace("= 2 *", "= sum += 2 *")
        if "helper" in new:
            source = "__device__ int helper() { return threadIdx.x; }" + source
        assert whats(BLOCKS, strided(source)) == []

    def test_a_constant_that_tensors_depend_on_stays(self):
        spec = spec_of(
            "__global__ void kernel(const float* x, float* y) { y[blockIdx.x] = x[0] + ROWS; }",
            ["x[1]", "> y[ROWS]"],
            grid=("ROWS",),
            constants={"ROWS": 8},
        )
        assert whats(BLOCKS, spec) == []


class TestAtomics:
    def test_shared_memory_that_the_launch_does_not_ask_for_counts_as_none(self):
        source = """
        __global__ void kernel(const int* x, int* counts, int n) {
          extern __shared__ unsigned char memory[];
          int i = blockIdx.x * blockDim.x + threadIdx.x;
          if (i < n) atomicAdd(&counts[x[i]], 1);
        }
        """
        spec = spec_of(
            source,
            ["x[N]", "> counts[8]"],
            scalars=["n"],
            grid=("ceil_div(N, 64)",),
            sizes=({"N": 256},),
            dtypes={"x": "int32", "counts": "int32"},
        )
        assert whats(ATOMICS, spec) == ["copy of counts for each block"]

    def test_a_place_that_depends_on_the_size_of_the_block_goes_on_doing_so(self):
        source = """
        __global__ void kernel(const float* x, float* y, int n) {
          int first = blockIdx.x * blockDim.x;
          int i = first + threadIdx.x;
          if (i < n) atomicAdd(y + first, x[i]);
        }
        """
        text = only(ATOMICS, elements(source), "block reduction").source
        assert "atomicAdd(y + (blockIdx.x * blockDim.x), y_partial);" in text


class TestSoftmax:
    SOURCE = """
    __global__ void kernel(const float* x, float* y, int rows, int cols) {
      int row = blockIdx.x * blockDim.x + threadIdx.x;
      if (row >= rows) return;
      float most = x[row * cols];
      for (int c = 0; c < cols; c++) most = max(most, x[row * cols + c]);
      float sum = 0;
      for (int c = 0; c < cols; c++) sum += expf(x[row * cols + c] - most);
      for (int c = 0; c < cols; c++) y[row * cols + c] = expf(x[row * cols + c] - most) / sum;
    }
    """

    def test_a_maximum_that_begins_with_an_element_is_kept(self):
        text = only(MATH, rows(self.SOURCE), "online").source
        assert "most = fmaxf(most, most_online);" in text

    @pytest.mark.slow
    def test_it_is_right_afterwards(self):
        spec = rows(self.SOURCE)
        check(only(MATH, spec, "online"), spec, softmax)


def softmax(v: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    powers = np.exp(v["x"] - v["x"].max(axis=1, keepdims=True))
    return {"y": powers / powers.sum(axis=1, keepdims=True)}


class TestRestrict:
    def test_all_tensors_are_said_to_be_apart(self):
        state = only("cache_policy_cg", elements(SILU), "__restrict__")
        assert "(const float* __restrict__ x, float* __restrict__ y," in state.source
        again = whats("cache_policy_cg", elements(SILU), state)
        assert not any("__restrict__" in what for what in again)

    def test_one_that_is_passed_twice_is_not(self):
        spec = elements(SILU.replace("float* y,", "float* y, const float* z,"))
        twice = replace(spec, arguments=("x", "y", "x", "n"))
        assert not any("__restrict__" in what for what in whats("cache_policy_cg", twice))


class TestEarlyReturns:
    def test_comparisons_of_numbers_that_can_be_nan_are_negated_as_a_whole(self):
        source = SILU.replace("i >= n", "i >= n || x[0] >= 1.0f")
        text = only(VECTORS, elements(source), "4 elements per thread").source
        assert "if ((!(x[0] >= 1.0f))) {" in text
