"""How many sets of buffers keep a cache cold."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.devices import MAX_SETS, Work, sets_needed
from pytest_gpuenergy.emulator import DEFAULT_PROFILE, Traffic, demand_of
from pytest_gpuenergy.kernels import Kernel, Launch, RecordedFigures
from pytest_gpuenergy.support import KernelFault

MIB = 1 << 20


@given(st.integers(13_000, 1 << 36), st.integers(MIB, 50 * MIB))
def test_what_comes_between_two_uses_of_a_set_fills_the_cache_twice(
    set_bytes: int, l2_bytes: int
) -> None:
    sets = sets_needed(set_bytes, l2_bytes)
    assert 2 <= sets <= MAX_SETS
    assert (sets - 1) * set_bytes >= 2 * l2_bytes
    assert (sets - 2) * set_bytes < 2 * l2_bytes


@pytest.mark.parametrize("set_bytes", [0, 1, 4096])
def test_buffers_too_small_are_refused(set_bytes: int) -> None:
    with pytest.raises(KernelFault, match="use --gpuenergy-cache hot, or a larger") as raised:
        sets_needed(set_bytes, 50 * MIB)
    assert raised.value.outcome == "constraints"


LAUNCH = Launch("f", (1000, 1, 1), (128, 1, 1), ())
TRAFFIC = Traffic(
    global_read_bytes=1e4, global_loads=80, global_sectors=320, l2_sectors=320, private_words=1
)


def test_modelled_memory_serves_a_cold_cache_and_not_a_hot_one() -> None:
    kernel, work = Kernel('extern "C" __global__ void f() {}', (LAUNCH,)), Work(10**6, 10 * MIB)
    hot, cold = (
        demand_of(kernel, work, [TRAFFIC], DEFAULT_PROFILE, cache=state)
        for state in ("hot", "cold")
    )
    assert (hot.memory_power, cold.memory_power > 0) == (0.0, True)
    assert cold.power_w * cold.time_s > hot.power_w * hot.time_s


def test_figures_recorded_hot_say_nothing_of_a_cold_cache() -> None:
    recorded = RecordedFigures(DEFAULT_PROFILE.name, 700.0, 5.0, 400.0, 2000.0)
    kernel = Kernel('extern "C" __global__ void f() {}', (LAUNCH,), recorded=(recorded,))
    work = Work(10**6, 10 * MIB)
    cold = demand_of(kernel, work, [TRAFFIC], DEFAULT_PROFILE, cache="cold")
    assert demand_of(kernel, work, None, DEFAULT_PROFILE).time_s == 5e-3
    assert cold.time_s < 1e-3
