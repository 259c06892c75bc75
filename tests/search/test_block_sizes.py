"""The move ``change_block_sizes``, and how moves follow the sizes of blocks in common styles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernel_specs import SOURCE, launch_with, spec_with, write
from move_checks import check, only, results, spec_of, whats
from msgspec.structs import replace

from pytest_gpuenergy.search import Application, KernelSpec, read_spec

BLOCKS, VECTORS = "change_block_sizes", "vectorize_global_loads"
OF_GRID = """
__global__ void kernel(const float* x, float* y, int n) {
  int stride = gridDim.x * blockDim.x;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) y[i] = 2 * x[i];
}
"""
MEANS = """
__device__ float sum_of_warp(float v) {
  for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(~0u, v, d);
  return v;
}
__global__ void kernel(const float* x, float* y, int n) {
  __shared__ float parts[32], mean;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[blockIdx.x * n + i];
  sum = sum_of_warp(sum);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x < 32) {
    sum = sum_of_warp(threadIdx.x < blockDim.x / 32 ? parts[threadIdx.x] : 0.0f);
    if (threadIdx.x == 0) mean = sum / n;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = mean;
}
"""
BY_WARPS = """
typedef float real;
__global__ void kernel(const real* a, float* y, int rows, int n) {
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  float sum = 0.0f;
  for (int j = lane; j < n; j += 32) sum += a[row * n + j];
  for (int d = 16; d > 0; d /= 2) sum += __shfl_down_sync(~0u, sum, d);
  if (lane == 0) y[row] = sum;
}
"""
TILES = """
#define AT(i, j) ((j) * w + (i))
__global__ void __launch_bounds__(256) kernel(const float* x, float* y, int w, int h) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, j = blockIdx.y * blockDim.y + threadIdx.y;
  if (i < w && j < h) y[AT(i, j)] = 2 * x[AT(i, j)];
}
"""


def of_grid(source: str = OF_GRID) -> KernelSpec:
    sizes = ({"N": 700}, {"N": 77})
    return spec_of(source, ["x[N]", "> y[N]"], scalars=["n"], grid=(4,), sizes=sizes)


def means(source: str = MEANS) -> KernelSpec:
    sizes = ({"ROWS": 3, "N": 256}, {"ROWS": 2, "N": 77})
    tensors = ["x[ROWS, N]", "> y[ROWS, N]"]
    return spec_of(source, tensors, scalars=["n"], grid=("ROWS",), sizes=sizes)


def of_block(*sizes: int) -> list[str]:
    return [f"block_x={threads}" for threads in sizes]


def test_a_grid_that_shares_a_loop_may_have_any_number_of_threads_and_blocks():
    blocks = [f"{number} blocks" for number in (1, 2, 8, 16)]
    assert whats(BLOCKS, of_grid()) == [*of_block(32, 128, 256, 512, 1024), *blocks]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("y[i] = 2", "y[i] = blockIdx.x"),
        ("gridDim.x * blockDim.x", "gridDim.x * 64"),
        ("gridDim.x * blockDim.x", "4 * blockDim.x"),
        ("int stride", "if (blockIdx.x == 0) y[0] = 1;\n  int stride"),
    ],
)
def test_a_grid_that_does_more_is_left_alone(old, new):
    assert old in OF_GRID
    assert whats(BLOCKS, of_grid(OF_GRID.replace(old, new))) == []


@pytest.mark.slow
def test_other_numbers_of_blocks_are_right():
    spec = of_grid()
    launch = replace(spec.launch, block=(128,), grid=(1,))
    check(replace(spec.baseline, launch=launch), spec, lambda v: {"y": 2 * v["x"]})


def test_a_block_that_sums_up_by_its_size_may_have_another_one():
    assert whats(BLOCKS, means()) == of_block(32, 128, 256, 512, 1024)


@pytest.mark.parametrize(
    ("old", "new", "threads"),
    [
        ("d = 16", "d = 64", ()),
        ("i += blockDim.x", "i += 64", ()),
        ("parts[32]", "parts[4]", (32, 128)),
        ("threadIdx.x / 32] = sum", "threadIdx.x] = sum", (32,)),
    ],
)
def test_one_that_states_its_size_or_has_no_room_for_more_keeps_to_that(old, new, threads):
    assert old in MEANS
    source = MEANS.replace(old, new)
    if "parts[4]" in new:
        source = source.replace("threadIdx.x < 32)", "threadIdx.x < 4)")
    if "threadIdx.x]" in new:
        source = source.replace("parts[32]", "parts[63]")
    assert whats(BLOCKS, means(source)) == of_block(*threads)


def test_a_block_that_the_grid_follows_keeps_to_its_shared_arrays():
    source = """
    __global__ void kernel(const float* x, float* y, int n) {
      __shared__ float part[128];
      part[threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
      __syncthreads();
      y[blockIdx.x * blockDim.x + threadIdx.x] = part[threadIdx.x ^ 1];
    }
    """
    spec = of_grid(source)
    spec = replace(spec, launch=replace(spec.launch, grid=("N // block_x",)))
    assert whats(BLOCKS, spec) == of_block(32, 128)


@pytest.mark.slow
def test_another_size_of_a_block_that_sums_up_is_right():
    spec = means()
    state = only(BLOCKS, spec, "block_x=512")
    check(
        state,
        spec,
        lambda v: {"y": np.broadcast_to(v["x"].mean(axis=1, keepdims=True), v["x"].shape)},
        init={"x": (0.5, 1.5)},
    )


def test_a_block_of_two_axes_gets_smaller_ones_and_stays_within_its_bounds():
    spec = spec_of(
        TILES,
        ["x[H, W]", "> y[H, W]"],
        scalars=["w", "h"],
        grid=("ceil_div(W, block_x)", "ceil_div(H, block_y)"),
        block=(16, 8),
        sizes=({"W": 64, "H": 32}, {"W": 33, "H": 17}),
    )
    expected = ["block_x=4", "block_x=8", "block_x=32", "block_y=2", "block_y=4", "block_y=16"]
    assert whats(BLOCKS, spec) == expected


def test_a_row_for_each_warp_of_the_grid_is_loaded_by_vectors_of_the_files_own_type():
    spec = spec_of(
        BY_WARPS,
        ["a[ROWS, N]", "> y[ROWS]"],
        scalars=["rows", "n"],
        grid=("ceil_div(ROWS * 32, block_x)",),
        sizes=({"ROWS": 8, "N": 256}, {"ROWS": 3, "N": 77}),
    )
    found = whats(VECTORS, spec)
    assert found == [f"shared loops over j at line 7 by {width}" for width in (2, 4)]
    other = replace(spec, source=BY_WARPS.replace("/ 32, lane", "/ 32 + threadIdx.x / 64, lane"))
    assert whats(VECTORS, other) == []


MOVED_ON = """
__global__ void kernel(const float* x, const float* w, float* y, uint64_t n) {
  const auto row = static_cast<uint64_t>(blockIdx.x);
  x += row * n;
  y += row * n;
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = w[i] * x[i];
}
"""


def moved_on(source: str = MOVED_ON) -> KernelSpec:
    spec = means(source)
    x, y = spec.tensors
    w = replace(x, name="w", shape=("N",))
    n = replace(spec.scalars[0], dtype="uint64")
    return replace(spec, tensors=(x, w, y), scalars=(n,), arguments=("x", "w", "y", "n"))


@pytest.mark.slow
def test_pointers_that_are_moved_on_first_are_loaded_by_vectors():
    spec = moved_on()
    (_, state) = [one.state for one in results(VECTORS, spec)]
    assert "reinterpret_cast<const float4*>(&x[i_first])" in state.source
    check(state, spec, lambda v: {"y": v["w"] * v["x"]})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x += row * n;", "x += row * n + 1;"),
        ("x += row * n;", "if (n > 1) x += row * n;"),
        ("x += row * n;", "x -= row * n;"),
        ("x += row * n;", "x += row * n; x += 4;"),
    ],
)
def test_one_that_is_moved_otherwise_is_not(old, new):
    spec = moved_on(MOVED_ON.replace(old, new))
    texts = [one.state.source for one in results(VECTORS, spec)]
    assert not any("&x[" in text for text in texts)


def test_an_element_that_leaves_early_may_have_a_type_that_is_deduced():
    source = """
    __global__ void kernel(const float* x, float* y, uint64_t n) {
      const auto i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
      if (i >= n) { return; }
      y[i] = 2 * x[i];
    }
    """
    spec = replace(of_grid(source), launch=replace(of_grid().launch, grid=("ceil_div(N, 64)",)))
    assert whats(VECTORS, spec) == [f"{width} elements per thread" for width in (2, 4)]


def applications(folder: Path, **fields: Any) -> list[Application]:
    spec = read_spec(write(folder, spec_with(**fields)))
    return results(BLOCKS, spec)


def described(folder: Path, **fields: Any) -> list[str]:
    return [one.what for one in applications(folder, **fields)]


def test_a_block_whose_size_the_grid_knows_is_changed(tmp_path):
    found = described(tmp_path)
    assert found == [
        *(f"block_x={threads}" for threads in (64, 128, 256, 512, 1024)),
        *(f"ITEMS={items}" for items in (1, 2, 8, 16)),
    ]


def test_a_block_that_nothing_depends_on_is_left_alone(tmp_path):
    assert described(tmp_path, launch=launch_with(grid=[125], constants={})) == []


def test_a_constant_that_only_a_comment_has_is_left_alone(tmp_path):
    text = SOURCE.replace("ITEMS", "4") + "// ITEMS\n/* ITEMS */"
    assert not any("ITEMS" in what for what in described(tmp_path, source=text))


def test_a_constant_that_states_the_size_of_the_block_takes_it_along(tmp_path):
    text = SOURCE.replace("blockDim.x", "THREADS")
    launch = launch_with(grid=["ceil_div(N, THREADS * 4)"], constants={"THREADS": 32})
    found = applications(tmp_path, source=text.replace("ITEMS", "4"), launch=launch)
    plans = [(one.state.launch.constants["THREADS"], one.state.launch.block) for one in found]
    assert plans == [(threads, (threads,)) for threads in (64, 128, 256, 512, 1024)]


def test_a_block_has_at_most_1024_threads(tmp_path):
    launch = launch_with(grid=["ceil_div(N, block_x)", "ceil_div(N, block_y)"], block=[32, 8])
    found = applications(tmp_path, launch=launch)
    assert found
    assert all(one.state.launch.block[0] * one.state.launch.block[1] <= 1024 for one in found)


def test_constants_stay_near_those_of_the_baseline(tmp_path):
    spec = read_spec(write(tmp_path))
    far = replace(spec.baseline, launch=replace(spec.launch, constants={"ITEMS": 64}))
    found = whats(BLOCKS, spec, far)
    assert "ITEMS=32" in found
    assert "ITEMS=128" not in found
