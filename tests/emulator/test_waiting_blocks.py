"""Blocks that wait for other blocks, as long as a GPU holds them at once."""

import dataclasses

import numpy as np
import pytest

from pytest_gpuenergy.devices import Arena
from pytest_gpuenergy.emulator import DEFAULT_PROFILE, HostRunner
from pytest_gpuenergy.kernels import Kernel, Launch
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Tensor

pytestmark = pytest.mark.slow

SMALL = dataclasses.replace(DEFAULT_PROFILE, sm_count=2, blocks_per_sm=4)

FLAGS = {
    "volatile": ("*(volatile int*)&n[{0}] = {1}", "*(volatile int*)&n[{0}]"),
    "atomic": ("atomicExch(&n[{0}], {1})", "atomicAdd(&n[{0}], 0)"),
    "L2 cache": ("__stcg(&n[{0}], {1})", "__ldcg(&n[{0}])"),
    "PTX": (
        'asm volatile("st.relaxed.gpu.s32 [%0], %1;" :: "l"(&n[{0}]), "r"({1}) : "memory")',
        '({{ int got; asm volatile("ld.relaxed.gpu.s32 %0, [%1];" : "=r"(got) : "l"(&n[{0}])'
        ' : "memory"); got; }})',
    ),
    "loaded again": ("atomicExch(&n[{0}], {1})", "__ldcv(&n[{0}])"),
}
"""How a flag is set and read."""

FIRST_WAITS = """
  __shared__ int got;
  if (b == 1) { y[0] = 7; __threadfence(); __syncthreads(); if (!t) SET; }
  if (b == 0) { if (!t) { while (GET == 0) {} __threadfence(); got = 3; } __syncthreads();
                y[1 + t] = y[0] + got; }"""
# Aggregates and prefixes of blocks (Merrill and Garland, "Single-pass Parallel Prefix Scan with
# Decoupled Look-back", 2016), 64 elements each; n[b] is 0, 1 for an aggregate, 2 for a prefix.
SCAN = """
  __shared__ float s[64]; __shared__ float before;
  volatile int* state = n; float* sums = y + 8192;
  s[t] = t + b % 3; __syncthreads();
  for (int d = 1; d < 64; d *= 2) {
    float v = t >= d ? s[t - d] : 0; __syncthreads(); s[t] += v; __syncthreads();
  }
  if (t == 63) {
    sums[2 * b] = s[63]; __threadfence(); state[b] = 1;
    float sum = 0;
    for (int k = b - 1; k >= 0; --k) {
      int found; while ((found = state[k]) == 0) {}
      __threadfence();
      if (found == 2) { sum += sums[2 * k + 1]; break; }
      sum += sums[2 * k];
    }
    sums[2 * b + 1] = sum + s[63]; __threadfence(); state[b] = 2;
    before = sum;
  }
  __syncthreads();
  y[i] = before + s[t];"""
# All warps vote on what their lanes have read of the flags.
WARP_LOOKS_BACK = """
  volatile int* state = n;
  if (t == 0) { y[b] = b + 1; __threadfence(); state[b] = 1; }
  int k = b - 1 - t;
  bool there;
  do { there = k < 0 || state[k] != 0; } while (!__all_sync(~0u, there));
  __threadfence();
  float sum = k < 0 ? 0 : y[k];
  for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
  if (t == 0) y[4096 + b] = sum;"""
# The block that finishes a tile waits for the partial sums of the others (stream-K).
FIX_UP = """
  __shared__ float tile[64];
  volatile int* done = n;
  tile[t] = x[i] * (b + 1);
  __syncthreads();
  if (b % 4 == 0) {
    for (int k = b + 1; k < b + 4; ++k) {
      if (!t) while (done[k] == 0) {}
      __threadfence();
      __syncthreads();
      tile[t] += y[4096 + 64 * k + t];
    }
    y[64 * (b / 4) + t] = tile[t];
  } else {
    y[4096 + 64 * b + t] = tile[t];
    __threadfence();
    __syncthreads();
    if (!t) done[b] = 1;
  }"""
# All blocks meet twice.
GRID_BARRIER = """
  for (int round = 1; round < 3; ++round) {
    y[64 * round + b] = round == 1 ? b : y[64 + (b + 1) % gridDim.x];
    __threadfence();
    __syncthreads();
    if (!t) { atomicAdd(n, 1); while (atomicAdd(n, 0) < round * (int)gridDim.x) {} }
    __syncthreads();
    __threadfence();
  }
  y[i + 4096] = y[128 + (b + 1) % gridDim.x];"""


@pytest.mark.parametrize("flag", FLAGS)
def test_the_first_block_may_wait_for_the_second(check_races, run_orders, flag):
    put, get = FLAGS[flag]
    body = FIRST_WAITS.replace("SET", put.format(5, 1)).replace("GET", get.format(5))
    assert check_races(body, grid=2).launches[0].blocks_run == 2
    for result in run_orders(body, grid=2):
        assert (result["y"][1:65] == 10).all()


@pytest.mark.parametrize("blocks", [2, 9, 100])
def test_a_scan_looks_back_at_other_blocks(check_races, run_orders, blocks):
    assert check_races(SCAN, grid=blocks).launches[0].blocks_run >= min(blocks, 8)
    each = np.arange(64) + np.arange(blocks)[:, None] % 3
    for result in run_orders(SCAN, grid=blocks):
        np.testing.assert_array_equal(result["y"][: 64 * blocks], np.cumsum(each))


def test_a_warp_looks_back_together(check_races, run_orders):
    assert check_races(WARP_LOOKS_BACK, block=32, grid=40).launches[0].blocks_run == 40
    expected = [sum(range(max(1, b - 31), b + 1)) for b in range(40)]
    for result in run_orders(WARP_LOOKS_BACK, block=32, grid=40):
        np.testing.assert_array_equal(result["y"][4096:4136], expected)


def test_a_block_fixes_up_a_tile_that_others_have_begun(check_races, run_orders):
    assert check_races(FIX_UP, grid=40).launches[0].blocks_run == 40
    for result in run_orders(FIX_UP, grid=40):
        expected = np.repeat([4 * k * 4 + 10 for k in range(10)], 64)
        np.testing.assert_array_equal(result["y"][:640], expected)


@pytest.mark.parametrize("blocks", [1, 2, 33])
def test_all_blocks_may_meet(check_races, run_orders, blocks):
    assert check_races(GRID_BARRIER, grid=blocks).launches[0].blocks_run == blocks
    for result in run_orders(GRID_BARRIER, grid=blocks):
        expected = np.repeat((np.arange(blocks) + 2) % blocks, 64)
        np.testing.assert_array_equal(result["y"][4096 : 4096 + 64 * blocks], expected)


@pytest.mark.parametrize(
    ("body", "grid"),
    [
        *(
            (FIRST_WAITS.replace("SET", put.format(5, 1)).replace("GET", get.format(5)), 2)
            for put, get in (FLAGS["atomic"], FLAGS["L2 cache"])
        ),
        (SCAN, 20),
        (WARP_LOOKS_BACK, 20),
        (FIX_UP, 8),
        (GRID_BARRIER, 8),
    ],
    ids=["flag", "L2 cache", "scan", "warp", "fix-up", "barrier"],
)  # fmt: skip
def test_what_another_block_waits_for_must_be_fenced(fault_of, body, grid):
    block = 32 if body == WARP_LOOKS_BACK else 64
    fault = fault_of(body.replace("__threadfence();", ""), grid=grid, block=block)
    assert fault.outcome == "correctness"
    assert "nothing orders blocks" in str(fault)


@pytest.mark.parametrize("blocks", [20, 250])
def test_blocks_that_wait_keep_their_shared_memory(run_orders, blocks):
    body = """
    __shared__ int fixed[64]; extern __shared__ int dynamic[];
    fixed[t] = i; dynamic[63 - t] = 2 * i;
    __syncthreads();
    if (!t) { atomicAdd(n, 1); while (atomicAdd(n, 0) < (int)gridDim.x) {} }
    __syncthreads();
    y[i] = fixed[63 - t] + dynamic[t];"""
    for result in run_orders(body, grid=blocks, shared_bytes=256):
        last = np.repeat(np.arange(blocks) * 64 + 63, 64) - np.tile(np.arange(64), blocks)
        np.testing.assert_array_equal(result["y"][: 64 * blocks], 3 * last)


@pytest.fixture(scope="module")
def small_gpu(host_cache):
    """A runner for a GPU that holds eight blocks."""
    host = HostRunner(host_cache, jobs=2, profile=SMALL)
    yield host
    host.close()


def test_as_many_blocks_meet_as_the_gpu_holds(small_gpu, small_kernel):
    kernel, arenas = small_kernel(GRID_BARRIER, grid=8)
    small_gpu.run(kernel, arenas, {}, timeout_s=20.0)
    assert arenas["n"].value()[0] == 16


def test_a_timeout_names_blocks_that_wait_for_one_another(small_gpu, small_kernel):
    kernel, arenas = small_kernel(GRID_BARRIER, grid=9)
    with pytest.raises(
        KernelFault, match=r"8 blocks wait for .* and the GPU holds 8 at once"
    ) as late:
        small_gpu.run(kernel, arenas, {}, timeout_s=2.0)
    assert late.value.outcome == "timeout"


def test_shared_memory_limits_how_many_blocks_meet(small_kernel, host_cache):
    profile = dataclasses.replace(SMALL, shared_per_sm=48 << 10, shared_per_block=48 << 10)
    kernel, arenas = small_kernel(GRID_BARRIER, grid=8, shared_bytes=24 << 10)
    host = HostRunner(host_cache, jobs=2, profile=profile)
    with pytest.raises(KernelFault, match="the GPU holds 4 at once"):
        host.run(kernel, arenas, {}, timeout_s=2.0)
    host.close()


def test_blocks_before_a_later_launch_wait_too(runner, tmp_path):
    source = """
    __device__ int flags[400];
    __global__ void chain(int* y) {
      if (blockIdx.x) while (atomicAdd(&flags[blockIdx.x - 1], 0) == 0) {}
      __threadfence();
      y[blockIdx.x] = blockIdx.x ? y[blockIdx.x - 1] + 1 : 1;
      __threadfence();
      atomicExch(&flags[blockIdx.x], 1);
    }
    __global__ void take(int* y) { y[400] = y[399]; }"""
    y = Arena.create(tmp_path / "y", Tensor("y", (401,), "int32", "output"))
    launches = (
        Launch("chain", (400, 1, 1), (1, 1, 1), ("y",)),
        Launch("take", (1, 1, 1), (1, 1, 1), ("y",)),
    )
    kernel = Kernel(source, launches)
    profile = runner.check_races(kernel, {"y": y}, {}, timeout_s=20.0)
    assert profile.launches[0].blocks_run == 400
    runner.run(kernel, {"y": y}, {}, timeout_s=20.0, order_seed=1)
    assert y.value()[400] == 400
