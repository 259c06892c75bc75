"""Barriers of some of a block's warps: ``bar.sync`` and ``bar.arrive`` with a number of threads."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_gpuenergy.support import KernelFault

pytestmark = pytest.mark.slow

BEFORE = """
#define SYNC(number, threads) \\
  asm volatile("bar.sync %0, %1;" :: "r"(number), "n"(threads) : "memory")
#define ARRIVE(number, threads) \\
  asm volatile("barrier.cta.arrive %0, %1;" :: "r"(number), "n"(threads) : "memory")
"""
# Two pairs of warps reverse their halves; the first then passes everything on to the last warp.
RIGHT = """__shared__ float s[128], v[128];
  int first = t / 64 * 64;
  s[t] = t;
  SYNC(1 + t / 64, 64);
  v[t] = s[2 * first + 63 - t];
  SYNC(1 + t / 64, 64);
  s[t] = 0;
  if (t < 96) { ARRIVE(3, 128); return; }
  SYNC(3, 128);
  for (int k = t - 96; k < 128; k += 32) y[k] = v[k];
"""


def test_some_warps_meet_and_others_only_arrive(run_orders, check_races):
    check_races(RIGHT, before=BEFORE, block=128)
    expected = np.concatenate([np.arange(64)[::-1], np.arange(64, 128)[::-1]])
    for result in run_orders(RIGHT, before=BEFORE, block=128):
        np.testing.assert_array_equal(result["y"][:128], expected)


@pytest.mark.parametrize(
    "body",
    [
        "s[t] = t; SYNC(1 + t / 64, 64); y[t] = s[127 - t];",
        "s[t] = t; if (t < 64) { ARRIVE(1, 128); y[t] = s[127 - t]; } else SYNC(1, 128);",
    ],
)
def test_a_barrier_orders_only_those_that_wait_for_one_another(fault_of, body):
    fault = fault_of(f"__shared__ float s[128]; {body}", before=BEFORE, block=128)
    assert "race on shared memory" in str(fault)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("if (t < 96) SYNC(2, 128);", "deadlock: .* at barrier 2, to which 96 of 128 threads"),
        ("if (t < 64) SYNC(2, 128); else SYNC(2, 96);", "for (96|128) threads, and others for"),
        ("SYNC(1, 100);", "for whole warps"),
        ("SYNC(16, 128);", "there are 16"),
    ],
)  # fmt: skip
def test_misuse_of_a_barrier_is_a_fault_with_its_reason(run_orders, body, reason):
    with pytest.raises(KernelFault, match=reason, check=lambda e: e.outcome == "runtime"):
        run_orders(body, before=BEFORE, block=128)
