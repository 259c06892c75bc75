"""What is claimed of a variant after rounds with its baseline."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuenergy.ab.rounds import Turns
from pytest_gpuenergy.energy.reading import Reading
from pytest_gpuenergy.record.conditions import Conditions
from pytest_gpuenergy.record.estimate import Estimate
from pytest_gpuenergy.record.metrics import METRICS, Metric
from pytest_gpuenergy.search.claim import LASTING_SD, claimed_change
from pytest_gpuenergy.search.comparison import gain_of

UNKNOWN = Conditions(None, None, None, None, None)
RATIOS = st.lists(st.floats(-0.1, 0.1), min_size=2, max_size=12)


@given(RATIOS, st.floats(0, 0.01), st.integers(1, 10_000))
def test_more_candidates_and_more_that_lasts_never_narrow_the_interval(
    ratios: list[float], lasting_sd: float, candidates: int
) -> None:
    found = claimed_change(ratios, lasting_sd, candidates=candidates)
    fewer = claimed_change(ratios, lasting_sd, candidates=max(1, candidates // 2))
    nothing = claimed_change(ratios, 0.0, candidates=candidates)
    assert nothing.half_width <= fewer.half_width + 1e-12
    assert fewer.half_width <= found.half_width + 1e-12
    assert found.low <= sum(ratios) / len(ratios) + 1e-12
    assert math.isclose(found.value, nothing.value, abs_tol=1e-12)


@pytest.mark.parametrize("metric", METRICS)
def test_rounds_that_agree_do_not_show_less_than_may_last(metric: Metric) -> None:
    found = claimed_change([-0.001] * 6, LASTING_SD[metric], candidates=10)
    assert found.half_width == pytest.approx(3.09 * math.sqrt(2) * LASTING_SD[metric], rel=1e-3)
    assert found.high > 0


def test_the_best_of_many_may_be_far_off_because_of_a_heavy_tail() -> None:
    # Student's t with five degrees of freedom exceeds 9.69 once in 10,050 times.
    found = claimed_change([-0.001] * 6, 0.01, candidates=200)
    assert found.half_width == pytest.approx(9.69 * math.sqrt(3 / 5) * 0.01, rel=1e-3)


def reading(time_ms: float, flags: tuple[str, ...] = ()) -> Reading:
    figures = (Estimate(value, value, value) for value in (time_ms, time_ms, time_ms**2))
    return Reading(*figures, 1000.0, time_ms, (), (), *(UNKNOWN,) * 3, flags=flags)


def turns(ratio: float, *, flags: tuple[str, ...] = ()) -> Turns:
    return Turns((reading(1.0),) * 6, (reading(ratio, flags),) * 6)


def test_a_gain_beyond_what_lasts_is_accepted_and_a_smaller_one_is_not() -> None:
    accepted = gain_of("a", turns(0.99), Metric.TIME, candidates=50)
    assert accepted.accepted
    assert accepted.ratio_intervals[Metric.TIME].high < 1
    assert not gain_of("a", turns(0.995), Metric.TIME, candidates=50).accepted
    assert gain_of("a", turns(0.995), Metric.TIME, candidates=1).accepted


def test_a_flagged_round_needs_a_larger_gain() -> None:
    found = gain_of("a", turns(0.95, flags=("interval_wide",)), Metric.TIME, candidates=2)
    assert not found.accepted
    assert found.reasons == ("flagged: interval_wide",)
    larger = turns(0.9, flags=("interval_wide",))
    assert gain_of("a", larger, Metric.TIME, candidates=2).accepted
