"""The barrier of a whole grid: ``cooperative_groups::this_grid().sync()``."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_gpuenergy.devices import Arena
from pytest_gpuenergy.kernels import Kernel, Launch
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Tensor

SYNC = "grid.sync();"
SOURCE = f"""#include <cooperative_groups.h>
namespace cg = cooperative_groups;
__global__ void k(const int* x, int* part, int* y) {{
  cg::grid_group grid = cg::this_grid();
  __shared__ int sum;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  for (int round = 0; round < 3; ++round) {{
    atomicAdd(&sum, x[grid.thread_rank()]);
    __syncthreads();
    if (threadIdx.x == 0) part[round * gridDim.x + blockIdx.x] = sum;
    {SYNC}
    int all = 0;
    for (int b = threadIdx.x; b < gridDim.x; b += blockDim.x) all += part[round * gridDim.x + b];
    if (threadIdx.x < gridDim.x) atomicAdd(&y[blockIdx.x], all);
    __syncthreads();
  }}
}}"""


@pytest.fixture
def summed(tmp_path):
    """summed(source, blocks): the kernel, its arenas, and what y should be."""

    def make(source, blocks=6):
        x = np.arange(64 * blocks, dtype="int32")
        arenas = {"x": Arena.create(tmp_path / "x", Tensor("x", x.shape, "int32", "input"), x)}
        for name, size in (("part", 3 * blocks), ("y", blocks)):
            tensor = Tensor(name, (size,), "int32", "output")
            arenas[name] = Arena.create(tmp_path / name, tensor, np.zeros(size, "int32"))
        launch = Launch("k", (blocks, 1, 1), (64, 1, 1), ("x", "part", "y"))
        return Kernel(source, (launch,)), arenas, np.full(blocks, 6 * x.sum())

    return make


@pytest.mark.parametrize("order_seed", range(4))
def test_blocks_see_what_others_wrote_before_the_barrier(runner, summed, order_seed):
    kernel, arenas, expected = summed(SOURCE)
    runner.run(kernel, arenas, {}, timeout_s=20.0, order_seed=order_seed)
    np.testing.assert_array_equal(arenas["y"].value(), expected)


def test_a_kernel_without_a_loop_has_its_blocks_at_once(runner, summed):
    source = """#include <cooperative_groups.h>
__global__ void k(const int* x, int* part, int* y) {
  if (threadIdx.x == 0) part[blockIdx.x] = x[blockIdx.x];
  cooperative_groups::this_grid().sync();
  if (threadIdx.x == 0) y[blockIdx.x] = part[gridDim.x - 1 - blockIdx.x];
}"""
    kernel, arenas, _ = summed(source)
    runner.check_races(kernel, arenas, {}, timeout_s=20.0)
    runner.run(kernel, arenas, {}, timeout_s=20.0)
    np.testing.assert_array_equal(arenas["y"].value(), np.arange(6)[::-1])


def test_the_barrier_orders_what_blocks_access(runner, summed):
    kernel, arenas, _ = summed(SOURCE)
    checked = runner.check_races(kernel, arenas, {}, timeout_s=20.0)
    assert checked.launches[0].blocks_run == 6


@pytest.mark.parametrize(
    ("old", "new", "blocks", "reason"),
    [
        (SYNC, "__syncthreads();", 6, "race on global memory: .* nothing orders blocks"),
        ("round * gridDim.x +", "", 6, "race on global memory: .* nothing orders blocks"),
        (SYNC, f"if (threadIdx.x) {SYNC}", 6, "barrier"),
        (SYNC, SYNC, 10_000, "barrier of a grid of 10000 blocks, of which the GPU holds"),
    ],
)
def test_what_is_wrong_at_the_barrier_is_found(runner, summed, old, new, blocks, reason):
    kernel, arenas, _ = summed(SOURCE.replace(old, new), blocks)
    with pytest.raises(KernelFault, match=reason):
        runner.check_races(kernel, arenas, {}, timeout_s=20.0)


def test_a_block_that_ends_without_coming_to_the_barrier_is_found(runner, summed):
    kernel, arenas, _ = summed(SOURCE.replace(SYNC, f"if (blockIdx.x == 2) return; {SYNC}"))
    reason = "deadlock: 5 blocks of k wait at the barrier of the grid, and 1 have ended without"
    with pytest.raises(KernelFault, match=reason):
        runner.run(kernel, arenas, {}, timeout_s=20.0)
