"""The clock and the power at which an emulated card runs a kernel."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pynvml
import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.devices import CLOCK_SPAN_S, ClockSamples
from pytest_gpuenergy.emulator import (
    DEFAULT_PROFILE,
    PROFILES,
    SW_POWER_CAP,
    CardState,
    Demand,
    EmulatedCard,
    EmulatedDevice,
    Fault,
    GpuProfile,
    VirtualRepeater,
    noise,
    operating_point,
    power_at,
    time_at,
    voltage,
)
from pytest_gpuenergy.opening import open_device

CLOCK_STEP_MHZ = 15

profiles = st.sampled_from(list(PROFILES.values()))
fractions = st.floats(0, 1)


@st.composite
def demands(draw: st.DrawFn) -> tuple[GpuProfile, Demand]:
    profile = draw(profiles)
    power_w = draw(st.floats(profile.idle_w * 0.8, profile.default_limit_w))
    time_s = draw(st.floats(1e-7, 1.0))
    return profile, Demand(time_s, power_w, draw(fractions), draw(fractions))


def caps(profile: GpuProfile) -> st.SearchStrategy[float]:
    return st.floats(profile.idle_w * 1.001, profile.max_limit_w)


@given(demands(), st.data())
def test_the_clock_is_the_highest_that_keeps_to_the_cap(case, data):
    profile, demand = case
    low_w, high_w = sorted([data.draw(caps(profile)), data.draw(caps(profile))])
    low, high = (operating_point(demand, profile, cap_w) for cap_w in (low_w, high_w))
    assert high.time_s * (1 - 1e-12) <= low.time_s < math.inf
    assert 0 < low.power_w <= min(low_w * (1 + 1e-9), high.power_w * (1 + 1e-12))
    assert low.clock_mhz <= high.clock_mhz
    if low.clock_mhz < profile.max_clock_mhz:
        assert low.event_reasons == SW_POWER_CAP
        above = (low.clock_mhz + CLOCK_STEP_MHZ) / profile.max_clock_mhz
        assert power_at(demand, profile, above) > low_w


@given(demands(), st.data())
def test_a_cap_out_of_reach_changes_nothing(case, data):
    profile, demand = case
    cap_w = data.draw(st.floats(demand.power_w * (1 + 1e-9), profile.max_limit_w + 1))
    point = operating_point(demand, profile, cap_w)
    assert (point.time_s, point.power_w) == pytest.approx((demand.time_s, demand.power_w))
    assert (point.clock_mhz, point.event_reasons) == (profile.max_clock_mhz, 0)


@given(demands(), st.data())
def test_the_clock_stays_on_the_grid_and_under_another_limit(case, data):
    profile, demand = case
    limit_mhz = data.draw(st.integers(profile.min_clock_mhz, profile.max_clock_mhz))
    clock = operating_point(demand, profile, data.draw(caps(profile)), limit_mhz).clock_mhz
    assert (profile.max_clock_mhz - clock) % CLOCK_STEP_MHZ == 0
    assert clock <= max(limit_mhz, profile.min_clock_mhz + CLOCK_STEP_MHZ)


@given(fractions.filter(lambda ratio: ratio > 0.01))
def test_compute_time_grows_as_the_clock_falls_and_memory_time_stays(ratio):
    assert time_at(Demand(1.0, 500.0), ratio) == pytest.approx(1 / ratio)
    assert time_at(Demand(1.0, 500.0, memory_time=1.0), ratio) == pytest.approx(1.0)


def test_under_the_voltage_floor_core_power_is_linear_in_the_clock():
    demand = Demand(1.0, 600.0)
    at = [power_at(demand, DEFAULT_PROFILE, ratio) for ratio in (0.2, 0.3, 0.4)]
    assert at[1] - at[0] == pytest.approx(at[2] - at[1])
    assert voltage(0.1) == voltage(0.5) < voltage(0.6) < voltage(1.0) == 1.0


def test_a_moderate_cap_lowers_the_energy_of_a_compute_bound_kernel():
    demand = Demand(1.0, 690.0)
    free = operating_point(demand, DEFAULT_PROFILE, 700)
    capped = operating_point(demand, DEFAULT_PROFILE, 450)
    assert capped.power_w * capped.time_s < free.power_w * free.time_s


def test_when_no_clock_fits_the_card_works_part_of_the_time():
    demand = Demand(1.0, 690.0)
    lowest = power_at(demand, DEFAULT_PROFILE, DEFAULT_PROFILE.min_clock_mhz / 1980)
    cap_w = (DEFAULT_PROFILE.idle_w + lowest) / 2
    point = operating_point(demand, DEFAULT_PROFILE, cap_w)
    full = time_at(demand, point.clock_mhz / DEFAULT_PROFILE.max_clock_mhz)
    assert point.power_w == pytest.approx(cap_w)
    assert point.time_s == pytest.approx(2 * full, rel=1e-6)


HUNGRY = Demand(2e-5, 690.0, memory_time=0.3, memory_power=0.2)
H200 = DEFAULT_PROFILE


def lock(device: Any, least_mhz: int, most_mhz: int | None = None) -> None:
    nvml = device.nvml
    nvml.nvmlDeviceSetGpuLockedClocks(device.handle, least_mhz, most_mhz or least_mhz)


def clocks(device: EmulatedDevice, demand: Demand = HUNGRY) -> tuple[int, float, float, int]:
    """Return NVML's clock, that of the SMs, the us of a run and the event reasons under a load."""
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
def test_the_governor_obeys_lock_and_cap_together(lock_mhz, cap_w):
    both = operating_point(HUNGRY, H200, cap_w, lock_mhz)
    capped = operating_point(HUNGRY, H200, cap_w)
    assert both.clock_mhz == min(lock_mhz, capped.clock_mhz)
    assert both.power_w <= cap_w
    # Only where the cap lowers the clock further does NVML name it.
    assert bool(both.event_reasons & SW_POWER_CAP) == (capped.clock_mhz < lock_mhz)


def test_a_locked_card_runs_at_its_lock_without_a_reason(device):
    nvml, handle = device.nvml, device.handle
    assert nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) == H200.min_clock_mhz
    free = clocks(device)
    lock(device, 1500)
    assert nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) == 1500
    told, own_mhz, run_us, reasons = clocks(device)
    assert (told, reasons) == (1500, 0)
    assert own_mhz == pytest.approx(1500, rel=0.01)
    assert run_us > 1.1 * free[2]
    nvml.nvmlDeviceResetGpuLockedClocks(handle)
    assert clocks(device)[0] == H200.max_clock_mhz


def test_a_cap_below_the_lock_is_the_reason(device):
    lock(device, 1500)
    device.nvml.nvmlDeviceSetPowerManagementLimit(device.handle, 200_000)
    told, _, _, reasons = clocks(device)
    assert told < 1500
    assert reasons == SW_POWER_CAP


def test_nvml_takes_the_supported_clocks_next_to_a_range(device):
    lock(device, 1, 1503)
    assert clocks(device)[0] == 1500
    with device.state.change() as card:
        assert card.lock_mhz == (345, 1500)


def test_nvml_refuses_clocks_that_are_none(device):
    for ends in ((0, 1500), (1500, 1200), (-5, 1500)):
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            lock(device, *ends)
    with pytest.raises(TypeError, match="clocks must be integers"):
        lock(device, 1500.0, 1500.0)
    with pytest.raises(pynvml.NVMLError_NotFound):
        device.nvml.nvmlDeviceGetSupportedGraphicsClocks(device.handle, 1)


@pytest.mark.parametrize("key", sorted(PROFILES))
def test_cards_before_volta_cannot_be_locked(key):
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


@pytest.mark.parametrize(
    ("fault", "mhz"),
    [
        (Fault.of("lock_lost", {"after_s": 0.1}), (1980, 1980)),
        (Fault.of("lock_ignored"), (1980, 1980)),
        (Fault.of("clock_locked", {"clock_mhz": 1200}), (1200, 1200)),
        (Fault.of("thermal_throttle"), (345, 1499)),
    ],
)
def test_a_locked_card_does_not_keep_its_lock(device, fault, mhz):
    lock(device, 1500)
    identity = device.state.inject(fault)
    told, own_mhz = clocks(device)[:2]
    assert mhz[0] <= told <= mhz[1]
    assert own_mhz == pytest.approx(told, rel=0.01)
    device.state.withdraw(identity)
    assert (clocks(device)[0] == 1500) == (fault.kind in ("lock_ignored", "thermal_throttle"))


def test_a_card_runs_below_its_lock_and_nvml_does_not_tell(device):
    lock(device, 1500)
    kept = clocks(device)
    device.inject("below_lock", {"percent": 5})
    told, own_mhz, run_us, reasons = clocks(device)
    assert (told, reasons) == (1500, 0)
    assert own_mhz == pytest.approx(0.95 * kept[1], rel=1e-3)
    assert run_us > 1.02 * kept[2]


def test_below_lock_does_nothing_to_a_card_that_is_not_locked(device):
    free = clocks(device)
    device.inject("below_lock", {"percent": 5})
    assert clocks(device)[1] == pytest.approx(free[1], rel=1e-3)


# -- the state file ----------------------------------------------------------------------------


def test_a_twin_has_the_same_lock_which_outlives_the_device():
    with open_device("emulated") as first:
        lock(first, 1500)
        with first.twin() as twin, twin.state.change() as card:  # type: ignore[attr-defined]
            assert card.lock_mhz == (1500, 1500)
    with open_device("emulated") as second, second.state.change() as card:  # type: ignore[attr-defined]
        assert card.lock_mhz == (1500, 1500)


def test_a_state_of_a_version_without_locks_is_read():
    data = EmulatedCard(H200, 1).to_json()
    del data["lock_mhz"]
    assert EmulatedCard.from_json(H200, 1, data).lock_mhz is None


SECOND_NS = 10**9
HOT = Demand(time_s=20e-6, power_w=650.0, memory_time=0.1)
MILD = Demand(time_s=30e-6, power_w=200.0)


@pytest.fixture
def state() -> Iterator[CardState]:
    found = CardState(DEFAULT_PROFILE)
    yield found
    found.close()


def started(state: CardState, demand: Demand) -> VirtualRepeater:
    repeater = VirtualRepeater(state, demand, timeout_s=10.0, placements=1)
    repeater.start()
    return repeater


def run(state: CardState, demand: Demand, seconds: float) -> ClockSamples:
    repeater = started(state, demand)
    state.spend(round(seconds * SECOND_NS))
    clocks = repeater.stop().clocks
    assert clocks is not None
    return clocks


def levels(clocks: ClockSamples) -> list[float]:
    return sorted(set(np.round(clocks.mhz, 3).tolist()))


def test_a_kernel_has_a_clock_of_its_own_near_that_of_nvml(state):
    found = [levels(run(state, Demand(20e-6, watts), 2.0)) for watts in (300.0, 400.0, 500.0)]
    again = levels(run(state, Demand(20e-6, 300.0), 2.0))
    assert [len(clocks) for clocks in found] == [1, 1, 1]
    assert found[0] == again
    assert len({clock for (clock,) in found}) == 3
    assert [clock for (clock,) in found] == pytest.approx([1980] * 3, rel=0.01)


def test_samples_cover_the_run_in_spans_of_50_ms(state):
    clocks = run(state, HOT, 3.0)
    assert clocks.end_s - clocks.begin_s == pytest.approx(CLOCK_SPAN_S, rel=0.1)
    assert clocks.begin_s[1:].tolist() == clocks.end_s[:-1].tolist()
    assert clocks.end_s[-1] - clocks.begin_s[0] == pytest.approx(3.0, abs=2 * CLOCK_SPAN_S)


def test_the_clock_follows_the_cap(state):
    repeater = started(state, HOT)
    state.spend(SECOND_NS)
    with state.change() as card:
        card.set_limit(450_000)
        reported_mhz = card.point.clock_mhz
    state.spend(SECOND_NS)
    clocks = repeater.stop().clocks
    assert clocks is not None
    assert reported_mhz < 1900
    assert clocks.mhz[0] == pytest.approx(1980, rel=0.01)
    assert clocks.mhz[-1] == pytest.approx(reported_mhz, rel=0.01)


def test_a_run_that_is_too_short_has_no_clock(state):
    assert started(state, HOT).stop().clocks is None


def test_without_the_fault_a_card_stays_in_one_state(state):
    assert len(levels(run(state, HOT, 120.0))) == 1


def test_heat_changes_the_state_once(state):
    state.inject(Fault.of("clock_states"))
    clocks = run(state, HOT, 30.0)
    steps = np.flatnonzero(np.abs(np.diff(clocks.mhz)) > 0.01)
    assert len(steps) in (1, 2)  # the span in which it happens may be between the two
    assert clocks.mhz[-1] / clocks.mhz[0] == pytest.approx(0.998, abs=1e-4)
    assert state.spend(0).temperature_c > 42


def test_a_step_changes_power_and_time_with_the_clock(state):
    repeater = started(state, HOT)
    state.spend(60 * SECOND_NS)
    before_mw = state.spend(SECOND_NS).mean_power_mw(state.spend(0).now_ns, SECOND_NS)
    state.inject(Fault.of("clock_states"))
    state.spend(SECOND_NS)
    after_mw = state.spend(SECOND_NS).mean_power_mw(state.spend(0).now_ns, SECOND_NS)
    assert after_mw / before_mw == pytest.approx(0.99, abs=0.003)
    timeline = repeater.stop()
    times_s = np.diff(timeline.busy_s) / np.diff(timeline.launches)
    longer = times_s[-100:].mean() / times_s[-400:-300].mean()
    assert longer == pytest.approx(1 + 0.9 * 0.002, abs=0.001)


@pytest.mark.slow
def test_states_also_change_without_heat_but_rarely(state):
    state.inject(Fault.of("clock_states"))
    clocks = run(state, MILD, 600.0)
    steps = int((np.abs(np.diff(clocks.mhz)) > 1.5).sum())
    assert len(set(np.round(clocks.mhz / 1.5).tolist())) == 2
    assert 1 <= steps <= 20


def test_the_state_is_kept_with_the_card(state):
    fault = state.inject(Fault.of("clock_states"))
    clocks = run(state, HOT, 30.0)
    with CardState(DEFAULT_PROFILE).change() as card:
        assert card.hidden_state == 1
    state.withdraw(fault)
    assert run(state, HOT, 1.0).mhz[-1] > clocks.mhz[-1] * 1.001


def test_noise_is_standard_and_repeats():
    values = [noise(12345, 2, index) for index in range(20_000)]
    mean = sum(values) / len(values)
    deviation = (sum(value**2 for value in values) / len(values)) ** 0.5
    assert abs(mean) < 0.03
    assert deviation == pytest.approx(1, rel=0.03)
    assert max(map(abs, values)) < 3.47
    assert values[7] == noise(12345, 2, 7) != noise(12345, 1, 7)
