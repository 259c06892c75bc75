"""Intervals that are valid whenever the rounds end."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import ab_coverage
import numpy as np
import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.ab import Turns
from pytest_gpuenergy.energy import Reading
from pytest_gpuenergy.gate import GateSettings, Looks
from pytest_gpuenergy.record import Conditions, Estimate, Metric, paired_log_ratio

LOOKS = Looks.up_to(16)
JUDGED = GateSettings({Metric.EDP: 0.05})
UNKNOWN = Conditions(None, None, None, None, None)


@given(st.integers(2, 1000))
def test_looks_spend_the_error_once_and_end_with_the_last_round(most):
    looks = Looks.up_to(most)
    assert looks.rounds[-1] == most
    assert list(looks.rounds) == sorted(set(looks.rounds))
    assert math.fsum(looks.shares) == pytest.approx(1.0)


@given(st.lists(st.floats(-0.1, 0.1), min_size=4, max_size=20), st.floats(1e-6, 0.02))
def test_more_rounds_never_widen_an_interval(ratios, tail):
    widths = []
    for number in range(4, len(ratios) + 1):
        found = LOOKS.interval(ratios[:number], tail=tail)
        assert found.low <= found.value <= found.high
        widths.append(found.half_width)
    latest = [
        paired_log_ratio(ratios[:number], tail=tail * share)
        for number, share in zip(LOOKS.rounds, LOOKS.shares, strict=True)
        if number <= len(ratios)
    ]
    if max(one.low for one in latest) <= min(one.high for one in latest):
        assert all(now <= before + 1e-12 for before, now in itertools.pairwise(widths))


def test_before_the_first_look_nothing_is_known():
    found = LOOKS.interval([0.1, 0.1, 0.1], tail=0.01)
    assert found.low < math.log(1e-8)
    assert found.high > math.log(1e8)


def test_rounds_after_a_look_wait_for_the_next():
    ratios = [0.01, 0.02, 0.03, 0.02]
    assert LOOKS.interval([*ratios, 5.0], tail=0.01) == LOOKS.interval(ratios, tail=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "change"),
    [
        ("Student's t, 3 degrees", 0.01),
        *(
            pytest.param(noise, change, marks=pytest.mark.thorough)
            for noise in ab_coverage.NOISES
            for change in (0.0, 0.01)
            if (noise, change) != ("Student's t, 3 degrees", 0.01)
        ),
    ],
)
def test_errors_are_as_rare_as_allowed_with_any_noise(noise, change):
    rng, runs, tail = np.random.default_rng(3), 400, 0.005
    turns = 0.003 * ab_coverage.NOISES[noise](rng, runs, 32)
    ratios = (ab_coverage.log_ratios(turns) + math.log1p(change)).tolist()
    found = [ab_coverage.outcome(one, math.log1p(change), 0.01, tail, 16) for one in ratios]
    assert sum(one.lower for one in found) <= 10  # 2 are allowed; more than 10: 7e-6
    assert sum(one.upper for one in found) <= 40  # 20 are allowed; more than 40: 1e-5
    if change:
        rounds = sum(one.rounds for one in found)
        assert rounds > 14 * runs  # the limit itself: undecided, but for the misses


def reading(edp: float, flags: tuple[str, ...] = ()) -> Reading:
    figures = [Estimate(value, value, value) for value in (1.0, edp, edp)]
    return Reading(*figures, 1000.0, edp, (), (), *(UNKNOWN,) * 3, flags=flags)


def turns(ratios: list[float], flags: tuple[str, ...] = ()) -> Turns:
    return Turns(tuple(reading(1.0) for _ in ratios), tuple(reading(one, flags) for one in ratios))


CLOSE = [1.0, 1.001, 0.999, 1.0]
WIDE = [1.0, 1.1, 0.9, 1.0]


@pytest.mark.parametrize(
    ("made", "enough"),
    [
        (turns(CLOSE), True),
        (turns(CLOSE[:3]), False),  # no look
        (turns([*CLOSE, 1.0]), False),  # likewise
        (turns(WIDE), False),
        (turns([1.05, 1.051, 1.049, 1.05]), False),  # at the limit itself
        (turns([1.5, 1.6, 1.5, 1.6]), True),
        (turns(CLOSE, ("foreign_process",)), True),  # no round could decide it
        (replace(turns(CLOSE), base=turns(CLOSE).base[:3]), False),
    ],
)
def test_rounds_end_when_each_verdict_is_clear(made, enough):
    assert made.are_enough(JUDGED, 1, LOOKS) is enough


def test_a_flagged_reading_counts_with_its_share_of_the_rounds():
    made = turns(CLOSE)
    one = replace(made, head=(*made.head[:3], reading(1.0, ("clock_step",))))
    (alone,), (all_of_them,) = one.doubts(), turns(CLOSE, ("clock_step",)).doubts()
    assert alone.energy_error == all_of_them.energy_error / 4
    assert one.are_enough(JUDGED, 1, LOOKS)
    assert not one.are_enough(GateSettings({Metric.EDP: 0.003}), 1, LOOKS)


def test_rounds_go_on_for_a_stated_precision():
    assert not turns(CLOSE).are_enough(JUDGED, 1, LOOKS, 0.002)
    assert turns(CLOSE).are_enough(JUDGED, 1, LOOKS, 0.05)
