"""Blocks that wait for others while a cuda::barrier of theirs, or copies, are under way."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_gpuenergy.support import KernelFault

pytestmark = pytest.mark.slow

BEFORE = """
#include <cooperative_groups.h>
#include <cuda/barrier>
#include <cuda/pipeline>
namespace cg = cooperative_groups;
using barrier = cuda::barrier<cuda::thread_scope_block>;
__device__ cuda::barrier<cuda::thread_scope_device> all;
"""
# Each block but the last waits for the flag of the next one.
NEXT_BLOCK = """if (b + 1 < (int)gridDim.x) {
    while (atomicAdd(&n[b + 1], 0) == 0) {} __threadfence(); got = y[4096 + b + 1]; }
  y[4096 + b] = b; __threadfence(); atomicExch(&n[b], 1);"""
BEGIN = """__shared__ float s[64]; __shared__ float got;
  #pragma nv_diag_suppress static_var_with_dynamic_init
  __shared__ barrier bar;
  if (t == 0) { init(&bar, 64); got = b + 1; }
  __syncthreads();
"""
HELD = {
    "others sleep in the phase": f"""{BEGIN}
  s[t] = x[t] + b;
  if (t == 63) {{ {NEXT_BLOCK} }}
  bar.arrive_and_wait();
  y[i] = s[63 - t] + got;""",
    "copies of the phase": f"""{BEGIN}
  cuda::memcpy_async(&s[t], &x[t], sizeof(float), bar);
  if (t == 63) {{ {NEXT_BLOCK} }}
  bar.arrive_and_wait();
  y[i] = s[63 - t] + b + got;""",
    "copies of each thread": f"""{BEGIN}
  auto pipe = cuda::make_pipeline();
  pipe.producer_acquire();
  cuda::memcpy_async(&s[t], &x[t], cuda::aligned_size_t<4>(4), pipe);
  pipe.producer_commit();
  if (t == 63) {{ {NEXT_BLOCK} }}
  pipe.consumer_wait();
  __syncthreads();
  y[i] = s[63 - t] + b + got;""",
}
MEET = """
  if (b == 0 && t == 0) { init(&all, gridDim.x); __threadfence(); atomicExch(n, 1); }
  if (t == 0) {
    while (atomicAdd(n, 0) == 0) {}
    __threadfence();
    for (int round = 0; round < 3; ++round) {
      y[64 * round + b] = round ? y[64 * (round - 1) + (b + 1) % gridDim.x] + 1 : b;
      all.arrive_and_wait();
    }
    y[4096 + b] = y[128 + (b + 1) % gridDim.x];
  }"""


@pytest.mark.parametrize("body", HELD.values(), ids=HELD)
def test_a_block_keeps_its_barrier_and_copies_while_it_waits_for_another(
    run_orders, check_races, body
):
    assert check_races(body, before=BEFORE, grid=20).launches[0].blocks_run == 20
    for result in run_orders(body, before=BEFORE, grid=20):
        expected = np.repeat(1 + np.arange(20) + np.arange(1, 21), 64)
        np.testing.assert_array_equal(result["y"][:1280], expected)


def test_a_phase_does_not_hide_that_another_block_must_fence(fault_of):
    body = HELD["others sleep in the phase"].replace("__threadfence();", "")
    assert "nothing orders blocks" in str(fault_of(body, before=BEFORE, grid=20))


def test_blocks_meet_at_a_barrier_in_global_memory(run_orders, check_races):
    assert check_races(MEET, before=BEFORE, grid=9).launches[0].blocks_run == 9
    for result in run_orders(MEET, before=BEFORE, grid=9):
        expected = (np.arange(9) + 3) % 9 + 2
        np.testing.assert_array_equal(result["y"][4096:4105], expected)


def test_an_arrival_without_a_wait_does_not_order_blocks(fault_of):
    body = MEET.replace("all.arrive_and_wait();", "(void)all.arrive();")
    assert "nothing orders blocks" in str(fault_of(body, before=BEFORE, grid=9))


@pytest.mark.parametrize("blocks", [1, 5])
def test_blocks_that_all_wait_for_one_more_are_a_deadlock(run_orders, blocks):
    body = MEET.replace("init(&all, gridDim.x)", "init(&all, gridDim.x + 1)")
    with pytest.raises(KernelFault, match=r"deadlock: .* for 1 more arrivals") as stuck:
        run_orders(body, before=BEFORE, grid=blocks)
    assert stuck.value.outcome == "runtime"
