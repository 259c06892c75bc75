"""Emulated cards that are locked to a clock: what the governor, NVML and faults make of it."""

from __future__ import annotations

from typing import Any

import pynvml
import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.emulator import (
    DEFAULT_PROFILE,
    PROFILES,
    SW_POWER_CAP,
    Card,
    Demand,
    EmulatedDevice,
    operating_point,
)
from pytest_gpuenergy.opening import open_device

HUNGRY = Demand(2e-5, 690.0, memory_time=0.3, memory_power=0.2)
H200 = DEFAULT_PROFILE


def lock(device: Any, least_mhz: int, most_mhz: int | None = None) -> None:
    nvml = device.nvml
    nvml.nvmlDeviceSetGpuLockedClocks(device.handle, least_mhz, most_mhz or least_mhz)


def clocks(device: EmulatedDevice, demand: Demand = HUNGRY) -> tuple[int, float, float, int]:
    """Under a load: NVML's clock, the SMs' own, the time of a run in us, and the event reasons."""
    nvml, handle = device.nvml, device.handle
    with device.play(demand) as repeater:
        repeater.start()
        device.clock.sleep_s(0.5)
        told = nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)
        reasons = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
        timeline = repeater.stop()
    assert timeline.clocks is not None
    run_us = 1e6 * timeline.busy_s[-1] / timeline.launches[-1]
    return told, float(timeline.clocks.mhz[-1]), float(run_us), reasons


@given(st.sampled_from([*H200.sm_clocks_mhz]), st.floats(200.0, 700.0))
def test_the_governor_obeys_lock_and_cap_together(lock_mhz: int, cap_w: float) -> None:
    both = operating_point(HUNGRY, H200, cap_w, lock_mhz)
    capped = operating_point(HUNGRY, H200, cap_w)
    assert both.clock_mhz == min(lock_mhz, capped.clock_mhz)
    assert both.power_w <= cap_w
    # Only where the cap lowers the clock further does NVML name it.
    assert bool(both.event_reasons & SW_POWER_CAP) == (capped.clock_mhz < lock_mhz)


def test_a_locked_card_runs_at_its_lock_without_a_reason(device: EmulatedDevice) -> None:
    free = clocks(device)
    lock(device, 1500)
    told, own_mhz, run_us, reasons = clocks(device)
    assert told == 1500
    assert own_mhz == pytest.approx(1500, rel=0.01)
    assert reasons == 0
    assert run_us > 1.1 * free[2]


def test_a_cap_below_the_lock_is_the_reason(device: EmulatedDevice) -> None:
    lock(device, 1500)
    device.nvml.nvmlDeviceSetPowerManagementLimit(device.handle, 200_000)
    told, _, _, reasons = clocks(device)
    assert told < 1500
    assert reasons == SW_POWER_CAP


def test_a_card_at_rest_keeps_to_its_lock(device: EmulatedDevice) -> None:
    nvml, handle = device.nvml, device.handle
    assert nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) == H200.min_clock_mhz
    lock(device, 1500)
    assert nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) == 1500


def test_a_reset_unlocks(device: EmulatedDevice) -> None:
    lock(device, 1500)
    device.nvml.nvmlDeviceResetGpuLockedClocks(device.handle)
    assert clocks(device)[0] == H200.max_clock_mhz


def test_nvml_takes_the_supported_clocks_next_to_a_range(device: EmulatedDevice) -> None:
    lock(device, 1, 1503)
    assert clocks(device)[0] == 1500
    with device.state.change() as card:
        assert card.lock_mhz == (345, 1500)


@pytest.mark.parametrize("ends", [(0, 1500), (1500, 1200), (-5, 1500)])
def test_nvml_refuses_a_range_that_is_none(device: EmulatedDevice, ends: tuple[int, int]) -> None:
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        device.nvml.nvmlDeviceSetGpuLockedClocks(device.handle, *ends)


def test_nvml_takes_no_fractions(device: EmulatedDevice) -> None:
    with pytest.raises(TypeError, match="clocks must be integers"):
        device.nvml.nvmlDeviceSetGpuLockedClocks(device.handle, 1500.0, 1500.0)


def test_a_wrong_memory_clock_has_no_graphics_clocks(device: EmulatedDevice) -> None:
    with pytest.raises(pynvml.NVMLError_NotFound):
        device.nvml.nvmlDeviceGetSupportedGraphicsClocks(device.handle, 1)


@pytest.mark.parametrize("key", sorted(PROFILES))
def test_cards_before_volta_cannot_be_locked(key: str) -> None:
    with open_device(f"emulated:{key}") as card:
        nvml, memory_mhz = card.nvml, PROFILES[key].memory_clock_mhz
        if key != "p100":
            found = nvml.nvmlDeviceGetSupportedGraphicsClocks(card.handle, memory_mhz)
            assert found[0] == PROFILES[key].max_clock_mhz
            lock(card, found[-1])
            nvml.nvmlDeviceResetGpuLockedClocks(card.handle)
            return
        for attempt in (
            lambda: nvml.nvmlDeviceGetSupportedGraphicsClocks(card.handle, memory_mhz),
            lambda: lock(card, 1000),
            lambda: nvml.nvmlDeviceResetGpuLockedClocks(card.handle),
        ):
            with pytest.raises(pynvml.NVMLError_NotSupported):
                attempt()


# -- faults ------------------------------------------------------------------------------------


def test_a_lock_is_lost(device: EmulatedDevice) -> None:
    lock(device, 1500)
    device.inject("lock_lost", {"after_s": 0.1})
    assert clocks(device)[0] == H200.max_clock_mhz


def test_a_lock_is_ignored_while_the_fault_lasts(device: EmulatedDevice) -> None:
    fault = device.inject("lock_ignored")
    lock(device, 1500)
    assert clocks(device)[:2] == (1980, pytest.approx(1980, rel=0.01))
    device.state.withdraw(fault)
    assert clocks(device)[0] == 1500


def test_a_card_runs_below_its_lock_and_nvml_does_not_tell(device: EmulatedDevice) -> None:
    lock(device, 1500)
    kept = clocks(device)
    device.inject("below_lock", {"percent": 5})
    told, own_mhz, run_us, reasons = clocks(device)
    assert (told, reasons) == (1500, 0)
    assert own_mhz == pytest.approx(0.95 * kept[1], rel=1e-3)
    assert run_us > 1.02 * kept[2]


def test_below_lock_does_nothing_to_a_card_that_is_not_locked(device: EmulatedDevice) -> None:
    free = clocks(device)
    device.inject("below_lock", {"percent": 5})
    assert clocks(device)[1] == pytest.approx(free[1], rel=1e-3)


def test_somebody_else_locks_a_card(device: EmulatedDevice) -> None:
    device.inject("clock_locked", {"clock_mhz": 1200})
    assert clocks(device)[0] == 1200


def test_heat_lowers_a_lock(device: EmulatedDevice) -> None:
    lock(device, 1500)
    device.inject("thermal_throttle")
    assert clocks(device)[0] < 1500


# -- the state file ----------------------------------------------------------------------------


def test_a_lock_outlives_the_process_and_the_device() -> None:
    with open_device("emulated") as first:
        lock(first, 1500)
    with open_device("emulated") as second, second.state.change() as card:  # type: ignore[attr-defined]
        assert card.lock_mhz == (1500, 1500)


def test_a_twin_has_the_same_lock(device: EmulatedDevice) -> None:
    lock(device, 1500)
    with device.twin() as twin, twin.state.change() as card:  # type: ignore[attr-defined]
        assert card.lock_mhz == (1500, 1500)


def test_a_state_of_a_version_without_locks_is_read() -> None:
    data = Card(H200, 1).to_json()
    del data["lock_mhz"]
    assert Card.from_json(H200, 1, data).lock_mhz is None
