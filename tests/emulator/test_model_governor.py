"""What a cap does to a kernel, as a pure function."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given, strategies as st

from pytest_gpuenergy.emulator import (
    CLOCK_STEP_MHZ,
    DEFAULT_PROFILE,
    PROFILES,
    SW_POWER_CAP,
    Demand,
    GpuProfile,
    operating_point,
    power_at,
    time_at,
    voltage,
)

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
def test_a_lower_cap_never_saves_time_nor_costs_power(
    case: tuple[GpuProfile, Demand], data: st.DataObject
) -> None:
    profile, demand = case
    low_w, high_w = sorted([data.draw(caps(profile)), data.draw(caps(profile))])
    low = operating_point(demand, profile, low_w)
    high = operating_point(demand, profile, high_w)
    assert low.time_s >= high.time_s * (1 - 1e-12)
    assert low.power_w <= high.power_w * (1 + 1e-12)
    assert low.clock_mhz <= high.clock_mhz


@given(demands(), st.data())
def test_the_cap_holds(case: tuple[GpuProfile, Demand], data: st.DataObject) -> None:
    profile, demand = case
    cap_w = data.draw(caps(profile))
    point = operating_point(demand, profile, cap_w)
    assert point.power_w <= cap_w * (1 + 1e-9)
    assert math.isfinite(point.power_w * point.time_s**2)
    assert point.power_w > 0
    assert point.time_s > 0


@given(demands(), st.data())
def test_a_cap_out_of_reach_changes_nothing(
    case: tuple[GpuProfile, Demand], data: st.DataObject
) -> None:
    profile, demand = case
    cap_w = data.draw(st.floats(demand.power_w * (1 + 1e-9), profile.max_limit_w + 1))
    point = operating_point(demand, profile, cap_w)
    assert point.time_s == pytest.approx(demand.time_s)
    assert point.power_w == pytest.approx(demand.power_w)
    assert point.clock_mhz == profile.max_clock_mhz
    assert point.event_reasons == 0


@given(demands(), st.data())
def test_no_higher_clock_would_have_fit(
    case: tuple[GpuProfile, Demand], data: st.DataObject
) -> None:
    profile, demand = case
    cap_w = data.draw(caps(profile))
    point = operating_point(demand, profile, cap_w)
    assume(point.clock_mhz < profile.max_clock_mhz)
    assert point.event_reasons == SW_POWER_CAP
    above = (point.clock_mhz + CLOCK_STEP_MHZ) / profile.max_clock_mhz
    assert power_at(demand, profile, above) > cap_w


@given(demands(), st.data())
def test_the_clock_stays_on_the_grid_and_under_another_limit(
    case: tuple[GpuProfile, Demand], data: st.DataObject
) -> None:
    profile, demand = case
    limit_mhz = data.draw(st.integers(profile.min_clock_mhz, profile.max_clock_mhz))
    clock = operating_point(demand, profile, data.draw(caps(profile)), limit_mhz).clock_mhz
    assert (profile.max_clock_mhz - clock) % CLOCK_STEP_MHZ == 0
    assert clock <= max(limit_mhz, profile.min_clock_mhz + CLOCK_STEP_MHZ)


@given(fractions.filter(lambda ratio: ratio > 0.01))
def test_compute_time_grows_as_the_clock_falls_and_memory_time_stays(ratio: float) -> None:
    assert time_at(Demand(1.0, 500.0), ratio) == pytest.approx(1 / ratio)
    assert time_at(Demand(1.0, 500.0, memory_time=1.0), ratio) == pytest.approx(1.0)


def test_under_the_voltage_floor_core_power_is_linear_in_the_clock() -> None:
    demand = Demand(1.0, 600.0)
    at = [power_at(demand, DEFAULT_PROFILE, ratio) for ratio in (0.2, 0.3, 0.4)]
    assert at[1] - at[0] == pytest.approx(at[2] - at[1])
    assert voltage(0.1) == voltage(0.5) < voltage(0.6) < voltage(1.0) == 1.0


def test_a_moderate_cap_lowers_the_energy_of_a_compute_bound_kernel() -> None:
    demand = Demand(1.0, 690.0)
    free = operating_point(demand, DEFAULT_PROFILE, 700)
    capped = operating_point(demand, DEFAULT_PROFILE, 450)
    assert capped.power_w * capped.time_s < free.power_w * free.time_s


def test_when_no_clock_fits_the_card_works_part_of_the_time() -> None:
    demand = Demand(1.0, 690.0)
    lowest = power_at(demand, DEFAULT_PROFILE, DEFAULT_PROFILE.min_clock_mhz / 1980)
    cap_w = (DEFAULT_PROFILE.idle_w + lowest) / 2
    point = operating_point(demand, DEFAULT_PROFILE, cap_w)
    full = time_at(demand, point.clock_mhz / DEFAULT_PROFILE.max_clock_mhz)
    assert point.power_w == pytest.approx(cap_w)
    assert point.time_s == pytest.approx(2 * full, rel=1e-6)
