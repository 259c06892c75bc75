"""What a launch's time and energy are spent on, by the model."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.emulator import DEFAULT_PROFILE, PROFILES
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.record import METRICS, Metric
from pytest_gpuenergy.search import (
    REGIONS,
    CardModel,
    Costs,
    Region,
    Situation,
    Work,
    changed,
    costs_of,
    dominant,
    involvement,
    power_w,
    saved,
    shares_of_energy,
    shares_of_time,
    situation_of,
)

CARD = CardModel(DEFAULT_PROFILE, 700.0)
AMOUNTS = st.floats(0, 1e6)
WORKS = st.builds(
    Work,
    blocks=st.integers(1, 100_000),
    threads=st.integers(1, 1024),
    instructions=AMOUNTS,
    functions=AMOUNTS,
    sectors=AMOUNTS,
    l2_bytes=AMOUNTS,
    wavefronts=AMOUNTS,
    atomics=AMOUNTS,
    rounds=AMOUNTS,
    barriers=AMOUNTS,
)


def costs(work: Work, dram_bytes: float = 0.0) -> Costs:
    found = costs_of(work, CARD, dram_bytes)
    assert found is not None
    return found


def situation(work: Work, time_s: float | None = None, card: CardModel = CARD) -> Situation:
    found = costs(work)
    return situation_of(found, time_s or found.time_s, card)


def busy(**amounts: float) -> Work:
    """A launch of 1320 blocks that keeps some units busy."""
    return Work(1320, 256, **amounts)  # type: ignore[arg-type]


@given(st.dictionaries(st.sampled_from(REGIONS), st.floats(0, 2)), st.floats(1e-3, 1))
def test_shares_of_time_add_up_to_one(busy_s: dict[Region, float], time_s: float) -> None:
    busy_s.pop("overlap", None)
    shares = shares_of_time(busy_s, time_s)
    assert set(shares) == set(REGIONS)
    assert all(share >= 0 for share in shares.values())
    assert math.fsum(shares.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("amounts", "region"),
    [
        ({"instructions": 1e5}, "compute"),
        ({"tensor_flops": 1e9}, "compute"),
        ({"sectors": 1e5}, "gmem"),
        ({"l2_bytes": 1e6}, "gmem"),
        ({"functions": 1e6}, "sfu"),
        ({"atomics": 1e5, "places": 1e9}, "atomics"),
        ({"atomics": 10.0, "places": 1.0}, "atomics"),
        ({"wavefronts": 1e5}, "smem"),
        ({"rounds": 100.0}, "overlap"),
        ({"barriers": 100.0}, "overlap"),
    ],
)
def test_what_a_kernel_does_most_is_its_bottleneck(
    amounts: dict[str, float], region: Region
) -> None:
    assert situation(busy(**amounts)).bottleneck == region


def test_device_memory_counts_as_memory() -> None:
    found = costs(busy(), dram_bytes=1e9)
    assert dominant(shares_of_time(found.busy_s, found.time_s)) == "gmem"


def test_what_is_slower_than_the_model_waits() -> None:
    work = busy(instructions=1e5)
    assert situation(work, costs(work).time_s).bottleneck == "compute"
    assert situation(work, 10 * costs(work).time_s).bottleneck == "overlap"


def test_a_launch_of_which_no_block_fits_has_no_costs() -> None:
    assert costs_of(Work(1, 128, shared_bytes=1 << 20), CARD, 0.0) is None


def test_energy_goes_to_what_moves_and_computes() -> None:
    assert dominant(shares_of_energy(costs(busy(instructions=1e5)))) == "compute"
    assert dominant(shares_of_energy(costs(busy(l2_bytes=1e6)))) == "gmem"
    assert shares_of_energy(costs(busy())) == dict.fromkeys(REGIONS, 0.0)


@given(st.floats(0, 100))
def test_power_is_between_that_of_an_idle_card_and_its_limit(activity: float) -> None:
    assert DEFAULT_PROFILE.idle_w <= power_w(activity, CARD) <= DEFAULT_PROFILE.default_limit_w


@given(WORKS, st.floats(1e-7, 1), st.sampled_from(METRICS))
def test_what_does_not_change_gains_nothing(work: Work, time_s: float, metric: Metric) -> None:
    same = costs(work)
    assert saved(situation_of(same, time_s, CARD), same, same, metric) == pytest.approx(0, abs=1e-9)
    assert changed(same, same) == frozenset()


@given(WORKS, WORKS, st.sampled_from(METRICS))
def test_gains_are_finite(one: Work, two: Work, metric: Metric) -> None:
    before = costs(one)
    assert abs(saved(situation_of(before, 1e-3, CARD), before, costs(two), metric)) <= 3


def test_work_that_vanishes_gains_no_more_than_is_believed() -> None:
    before = busy(instructions=1e5)
    found = costs(before)
    assert saved(situation(before, 1e-5), found, costs(busy()), Metric.EDP) == 3


def gain(before: Work, after: Work, metric: Metric, *, limit_w: float = 700.0) -> float:
    card = CardModel(DEFAULT_PROFILE, limit_w)
    return saved(situation(before, card=card), costs(before), costs(after), metric)


def test_only_what_is_the_bottleneck_gains_time() -> None:
    before = busy(instructions=1e5, sectors=1e4)
    assert gain(before, busy(instructions=5e4, sectors=1e4), Metric.TIME) > 0.3
    assert gain(before, busy(instructions=1e5, sectors=5e3), Metric.TIME) < 0.01


def test_less_traffic_saves_energy_though_it_saves_no_time() -> None:
    before, after = (busy(instructions=1e5, l2_bytes=some) for some in (1e5, 1e4))
    assert gain(before, after, Metric.TIME) < 0.01
    assert gain(before, after, Metric.ENERGY) > 0.05
    assert gain(before, after, Metric.EDP) > 0.05


def test_at_the_power_limit_less_traffic_saves_time() -> None:
    before, after = (busy(instructions=1e5, l2_bytes=some) for some in (1e5, 1e4))
    assert situation(before, card=CardModel(DEFAULT_PROFILE, 200.0)).limited
    assert gain(before, after, Metric.TIME, limit_w=200.0) > 0.05
    assert gain(before, after, Metric.EDP, limit_w=200.0) == pytest.approx(
        2 * gain(before, after, Metric.TIME, limit_w=200.0)
    )


def test_at_the_power_limit_waiting_less_saves_nothing() -> None:
    before, after = (busy(instructions=1e5, barriers=some) for some in (500.0, 5.0))
    assert gain(before, after, Metric.TIME) > 0.05
    assert gain(before, after, Metric.TIME, limit_w=200.0) == pytest.approx(0, abs=1e-9)


def test_a_measured_power_tells_whether_the_limit_binds() -> None:
    found = costs(busy(instructions=1e5))
    assert situation_of(found, 1e-3, CARD, measured_w=699.0).limited
    assert not situation_of(found, 1e-3, CARD, measured_w=400.0).limited
    assert not situation_of(found, 1e-3, CardModel(DEFAULT_PROFILE), measured_w=699.0).limited


def test_a_profile_takes_the_place_of_the_estimate() -> None:
    found = costs(busy(instructions=1e5))
    profiled = situation_of(found, 1e-3, CARD, used={"compute": 0.1, "smem": 0.8})
    assert profiled.bottleneck == "smem"
    assert profiled.time_shares["overlap"] == pytest.approx(0.2)


def test_a_move_can_change_what_it_relieves_and_no_more_than_the_contract_leaves() -> None:
    found = situation(busy(instructions=1e5))
    all_of_it = dict.fromkeys(REGIONS, 1.0)
    most = involvement(found, ["compute"], all_of_it, Metric.TIME)
    assert most == pytest.approx(found.time_shares["compute"])
    assert involvement(found, ["atomics"], all_of_it, Metric.TIME) == 0
    half = {**all_of_it, "compute": 0.5}
    assert involvement(found, ["compute"], half, Metric.TIME) == pytest.approx(most / 2)
    assert involvement(found, REGIONS, all_of_it, Metric.EDP) > most


def test_a_move_that_changes_a_unit_is_seen() -> None:
    before = costs(busy(instructions=1e5, serial=1e4))
    after = costs(busy(instructions=5e4, serial=5e3, functions=1e6))
    assert changed(before, after) == {"compute", "sfu", "overlap"}


def test_a_card_is_known_by_its_name_or_taken_for_a_similar_one() -> None:
    with open_device("emulated:a100") as device:
        assert CardModel.of(device).profile == PROFILES["a100"]
        assert CardModel.of(device).limit_w == 400
        device.name = "NVIDIA A800"
        assert CardModel.of(device).profile.architecture == "sm_80"
        device.architecture = "sm_999"
        assert CardModel.of(device).profile == DEFAULT_PROFILE
