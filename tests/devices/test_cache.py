"""How many sets of buffers keep a cache cold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuenergy.devices.cache import (
    MAX_PLACEMENTS,
    MAX_SETS,
    PAGE_BYTES,
    gaps,
    placements,
    sets_needed,
)
from pytest_gpuenergy.devices.device import Work
from pytest_gpuenergy.devices.emulated.model import Traffic, demand_of
from pytest_gpuenergy.devices.emulated.profiles import DEFAULT_PROFILE
from pytest_gpuenergy.errors import KernelFault
from pytest_gpuenergy.kernels.kernel import Kernel, Launch, RecordedFigures

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


@given(st.integers(0, 1 << 36))
def test_small_buffers_take_many_places_and_large_ones_little_memory(set_bytes: int) -> None:
    sets = placements(set_bytes)
    assert 1 <= sets <= MAX_PLACEMENTS
    assert sets == 1 or sets * set_bytes <= 256 * MIB
    assert sets == MAX_PLACEMENTS or (sets + 1) * set_bytes > 256 * MIB


@given(st.integers(1, MAX_PLACEMENTS), st.integers(0, 1 << 38), st.integers(0))
def test_distances_are_whole_pages_and_leave_most_memory_free(
    sets: int, free_bytes: int, seed: int
) -> None:
    found = gaps(sets, free_bytes, np.random.default_rng(seed))
    assert len(found) == sets
    assert all(gap >= 0 and gap % PAGE_BYTES == 0 for gap in found)
    assert sum(found) <= free_bytes / 4


def test_distances_differ_from_process_to_process() -> None:
    first, second = (gaps(MAX_PLACEMENTS, 1 << 36, np.random.default_rng(n)) for n in (1, 2))
    assert first != second
    assert len({*first, *second}) > MAX_PLACEMENTS
    assert 64 * MIB < np.mean(first + second) < 192 * MIB


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
