"""The gain of the best variants: which are compared, for how long, and when it is proven."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st
from kernel_specs import write

from pytest_gpuenergy.ab import Turns
from pytest_gpuenergy.emulator import EmulatedDevice
from pytest_gpuenergy.energy import Reading
from pytest_gpuenergy.record import METRICS, Conditions, Estimate, Metric
from pytest_gpuenergy.search import (
    LASTING_SD,
    ROUNDS,
    Confirmation,
    OwnProcess,
    SearchBench,
    SearchNode,
    VariantGain,
    compare,
    is_out_of_reach,
    is_proven,
    is_worth_comparing,
    judge_rounds,
    proven_change,
    read_spec,
)
from pytest_gpuenergy.search.running import confirmation

UNKNOWN = Conditions(None, None, None, None, None)
RATIOS = st.lists(st.floats(-0.1, 0.1), min_size=2, max_size=12)


@given(RATIOS, st.floats(0, 0.01), st.integers(1, 10_000))
def test_more_candidates_and_more_that_lasts_never_narrow_the_interval(
    ratios, lasting_sd, candidates
):
    found = proven_change(ratios, lasting_sd, candidates=candidates)
    fewer = proven_change(ratios, lasting_sd, candidates=max(1, candidates // 2))
    nothing = proven_change(ratios, 0.0, candidates=candidates)
    assert nothing.half_width <= fewer.half_width + 1e-12
    assert fewer.half_width <= found.half_width + 1e-12
    # It is the mean of the rounds up to the latest look.
    assert min(ratios) - 1e-12 <= found.value <= max(ratios) + 1e-12
    assert found.low <= found.value <= found.high
    assert math.isclose(found.value, nothing.value, abs_tol=1e-12)


@pytest.mark.parametrize("metric", METRICS)
def test_rounds_that_agree_do_not_show_less_than_may_last(metric):
    found = proven_change([-0.001] * 6, LASTING_SD[metric], candidates=10)
    assert found.half_width == pytest.approx(3.09 * math.sqrt(2) * LASTING_SD[metric], rel=1e-3)
    assert found.high > 0


def test_the_best_of_many_may_be_far_off_because_of_a_heavy_tail():
    # Student's t with five degrees of freedom exceeds 9.69 once in 10,050 times.
    found = proven_change([-0.001] * 6, 0.01, candidates=200)
    assert found.half_width == pytest.approx(9.69 * math.sqrt(3 / 5) * 0.01, rel=1e-3)


def reading(time_ms: float, flags: tuple[str, ...] = ()) -> Reading:
    figures = (Estimate(value, value, value) for value in (time_ms, time_ms, time_ms**2))
    return Reading(*figures, 1000.0, time_ms, (), (), *(UNKNOWN,) * 3, flags=flags)


def turns(ratio: float, *, flags: tuple[str, ...] = ()) -> Turns:
    return Turns((reading(1.0),) * 6, (reading(ratio, flags),) * 6)


def test_a_gain_beyond_what_lasts_is_accepted_and_a_smaller_one_is_not():
    accepted = judge_rounds("a", turns(0.99), Metric.TIME, candidates=50)
    assert accepted.accepted
    assert accepted.ratio_intervals[Metric.TIME].high < 1
    assert not judge_rounds("a", turns(0.995), Metric.TIME, candidates=50).accepted
    assert judge_rounds("a", turns(0.995), Metric.TIME, candidates=1).accepted


def test_a_flagged_round_needs_a_larger_gain():
    found = judge_rounds("a", turns(0.95, flags=("drift",)), Metric.TIME, candidates=2)
    assert not found.accepted
    assert found.reasons == ("flagged: drift",)
    larger = turns(0.8, flags=("drift",))
    assert judge_rounds("a", larger, Metric.TIME, candidates=2).accepted


def of_rounds(*log_ratios: float) -> Turns:
    ratios = tuple(reading(math.exp(ratio)) for ratio in log_ratios)
    return Turns((reading(1.0),) * len(ratios), ratios)


def test_a_large_gain_is_proven_after_four_rounds_and_not_before():
    ratios = [-0.5, -0.501, -0.499, -0.5]
    assert is_proven(ratios, 0.001, candidates=50)
    assert not is_proven(ratios[:3], 0.001, candidates=50)
    assert not is_proven([*ratios, -0.5], 0.001, candidates=50)  # is no look


def test_a_gain_that_is_proven_but_not_known_well_goes_on():
    assert not is_proven([-0.52, -0.5, -0.48, -0.5], 0.001)


@given(RATIOS, st.floats(0.001, 0.1))
def test_doubts_make_a_proof_harder(ratios, room):
    if is_proven(ratios, 0.001, room=room):
        assert is_proven(ratios, 0.001)


def test_a_gain_that_is_proven_early_is_accepted_and_says_so():
    early = judge_rounds("a", of_rounds(-0.5, -0.501, -0.499, -0.5), Metric.TIME, candidates=50)
    assert (early.accepted, early.rounds, early.ended_early) == (True, 4, True)


def test_a_comparison_has_the_figures_of_each_turn_in_order():
    found = judge_rounds("a", turns(0.9, flags=("not_steady",)), Metric.TIME, candidates=2)
    order = [(one.round, one.side) for one in found.turns]
    assert order[:4] == [(1, "baseline"), (1, "variant"), (2, "variant"), (2, "baseline")]
    assert len(found.turns) == 12
    assert {(one.side, one.time_ms, one.flags) for one in found.turns} == {
        ("baseline", 1.0, ()),
        ("variant", 0.9, ("not_steady",)),
    }


@given(RATIOS, st.sampled_from(METRICS), st.integers(1, 1000), st.integers(2, 20))
def test_what_is_out_of_reach_is_not_proven_by_the_same_rounds(ratios, metric, candidates, rounds):
    lasting = LASTING_SD[metric]
    if is_out_of_reach(ratios, lasting, rounds=rounds, candidates=candidates):
        assert proven_change(ratios, lasting, candidates=candidates).high >= 0


@given(RATIOS, st.integers(3, 20), st.floats(0.001, 0.1))
def test_doubts_make_a_proof_harder_to_reach(ratios, rounds, room):
    if is_out_of_reach(ratios, 0.01, rounds=rounds):
        assert is_out_of_reach(ratios, 0.01, rounds=rounds, room=room)


def test_rounds_without_a_gain_end_early_and_others_do_not():
    lasting = LASTING_SD[Metric.TIME]
    assert is_out_of_reach([0.001, -0.001, 0.0], lasting, rounds=6, candidates=12)
    assert not is_out_of_reach([0.001, -0.001], lasting, rounds=6, candidates=12)
    assert not is_out_of_reach([-0.01, -0.008, -0.009], lasting, rounds=6, candidates=12)
    # A mean of no gain, but a scatter that may hide one.
    assert not is_out_of_reach([-0.05, 0.05, 0.0], lasting, rounds=6, candidates=12)
    assert not is_out_of_reach([0.001, -0.001, 0.0], lasting, rounds=3, candidates=12)


@given(st.floats(-0.1, 0.1), st.sampled_from(METRICS), st.integers(1, 1000))
def test_what_is_worth_comparing_is_so_among_fewer_and_with_more_gain(change, metric, candidates):
    if is_worth_comparing(change, metric, candidates=candidates):
        assert is_worth_comparing(change, metric, candidates=max(1, candidates // 2))
        assert is_worth_comparing(change - 0.001, metric, candidates=candidates)


def test_a_gain_of_hundredths_of_a_percent_is_not_worth_a_comparison():
    assert not is_worth_comparing(-0.0002, Metric.TIME, candidates=12)
    assert is_worth_comparing(-0.003, Metric.TIME, candidates=12)
    assert not is_worth_comparing(-0.005, Metric.EDP, candidates=50)


Gains = Callable[..., list[VariantGain | None]]


@pytest.fixture
def compared() -> list[str]:
    """The ids of the variants that are measured alternately with the baseline."""
    return []


@pytest.fixture
def gains(compared: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gains:
    """Return a function that compares 12 variants with a baseline; no gain is accepted."""

    def found(_: SearchBench, state: str, *, candidates: int, **__: object) -> VariantGain:
        compared.append(state)
        return VariantGain(id=state, accepted=False, rounds=ROUNDS, candidates=candidates)

    monkeypatch.setattr(confirmation, "compare", found)
    bench: Any = SimpleNamespace(
        objective=Metric.TIME, spec=SimpleNamespace(name="scale"), why_unproven=lambda _: ""
    )
    folder: Any = SimpleNamespace(
        path=tmp_path, earlier_gain=lambda _: None, keep_gain=lambda _: None
    )

    def go(*times_ms: float, stopped: bool = False) -> list[VariantGain | None]:
        nodes = [
            SearchNode(
                id=f"s{place}", parent=None, outcome="correct", cost=time_ms, time_ms=time_ms
            )
            for place, time_ms in enumerate((*times_ms, *[2.0] * (12 + 1 - len(times_ms))))
        ]
        states: Any = {node.id: node.id for node in nodes}
        ending = Confirmation(OwnProcess(bench), folder, states, lambda _: None, lambda: stopped)
        return list(ending.gains(nodes))

    return go


def test_a_tiny_gain_is_left_out_and_says_why(gains, compared):
    [only] = gains(1.0, 0.9998, 0.9999)
    assert compared == []
    assert only is not None
    assert (only.id, only.accepted, only.rounds, only.candidates) == ("s1", False, 0, 12)
    assert only.message == (
        "left out: by the search's own figures it takes 0.02% less time, too little to be proven "
        "of the best of 12"
    )


def test_after_larger_gains_tiny_ones_are_left_out(gains, compared):
    found = gains(1.0, 0.9, 0.9999, 0.8)
    assert compared == ["s3", "s1"]
    assert [gain and gain.id for gain in found] == compared


def test_what_is_slower_than_the_baseline_is_not_compared(gains):
    assert gains(1.0, 1.1, 1.0) == []


def test_nothing_is_compared_once_it_is_stopped(gains, compared):
    assert gains(1.0, 0.9, stopped=True) == [None]
    assert compared == []


@pytest.mark.slow
def test_a_comparison_of_equals_ends_early(tmp_path):
    spec = read_spec(write(tmp_path))
    with EmulatedDevice() as device:
        gain = compare(SearchBench(spec, device, Metric.EDP), spec.baseline, candidates=12)
    assert gain is not None
    assert not gain.accepted
    assert gain.ended_early
    assert gain.rounds == 3
    assert len(gain.turns) == 6
    assert all(ends.low < 1 < ends.high for ends in gain.ratio_intervals.values())
    assert all(turn.effective_sm_clock_mhz and turn.temperature_c for turn in gain.turns)
