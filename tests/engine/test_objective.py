"""Properties of the cost that a search minimizes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from pytest_gpuenergy.engine import Evaluation, Typical, cost_ms, promising
from pytest_gpuenergy.record import METRICS, Metric

TIMES = st.floats(min_value=1e-3, max_value=1e3)
POWERS = st.floats(min_value=50.0, max_value=700.0)
objectives = st.sampled_from(METRICS)


def cost(objective: Metric, trial: Evaluation) -> float:
    assert trial.time_ms is not None
    assert trial.power_w is not None
    return {
        "time": trial.time_ms,
        "energy": trial.power_w * trial.time_ms,
        "edp": trial.power_w * trial.time_ms**2,
    }[objective]


@st.composite
def measured(draw: st.DrawFn) -> Evaluation:
    return Evaluation(outcome="timed", time_ms=draw(TIMES), power_w=draw(POWERS))


@given(objectives, measured(), measured(), POWERS)
def test_it_ranks_as_the_cost_does(
    objective: Metric, one: Evaluation, other: Evaluation, typical_w: float
) -> None:
    costs = [cost(objective, trial) for trial in (one, other)]
    times = [cost_ms(objective, trial, Typical(typical_w)) for trial in (one, other)]
    if costs[0] < costs[1] * (1 - 1e-9):
        assert times[0] < times[1]


@given(objectives, TIMES, POWERS)
def test_a_kernel_of_typical_power_counts_by_its_time(
    objective: Metric, time_ms: float, typical_w: float
) -> None:
    trial = Evaluation(outcome="timed", time_ms=time_ms, power_w=typical_w)
    assert cost_ms(objective, trial, Typical(typical_w)) == pytest.approx(time_ms)
    unknown = Evaluation(outcome="timed", time_ms=time_ms)
    assert cost_ms(objective, unknown, Typical(typical_w, 1.3)) == time_ms


@given(objectives)
def test_a_failed_trial_is_the_worst(objective: Metric) -> None:
    assert cost_ms(objective, Evaluation(outcome="timeout"), Typical(300.0)) == math.inf


@given(st.lists(measured(), max_size=9))
def test_the_typical_power_is_between_the_known_ones(trials: list[Evaluation]) -> None:
    typical = Typical.of(
        [*trials, Evaluation(outcome="timeout"), Evaluation(outcome="timed", time_ms=1.0)]
    )
    powers = [trial.power_w for trial in trials if trial.power_w]
    assert typical is None if not powers else min(powers) <= typical.power_w <= max(powers)


def slowed(time_ms: float, slowdown: float, power_w: float = 300.0) -> Evaluation:
    """A candidate that the power limit slows while its power is measured."""
    found = Evaluation(outcome="timed", time_ms=time_ms, power_w=power_w)
    return replace(found, sustained_ms=time_ms * slowdown)


@given(st.sampled_from(["energy", "edp"]), TIMES, st.floats(1, 3))
def test_a_kernel_that_is_slowed_as_usual_counts_as_one_that_was_not_measured(
    objective: Metric, time_ms: float, slowdown: float
) -> None:
    found = slowed(time_ms, slowdown)
    typical = Typical.of([found])
    assert typical == (300.0, pytest.approx(slowdown))
    assert cost_ms(objective, found, typical) == pytest.approx(time_ms)
    more = slowed(time_ms, 1.1 * slowdown)
    assert cost_ms(objective, more, typical) == pytest.approx(1.1 * time_ms)


def test_what_may_be_slowed_less_than_the_best_is_promising() -> None:
    known = [slowed(1.0, 1.5), slowed(1.2, 1.0)]
    assert promising("energy", batch(1.1), known) == [0]
    assert promising("energy", batch(1.3), known) == []


def batch(*times_ms: float) -> list[Evaluation]:
    return [Evaluation(outcome="timed", time_ms=time_ms) for time_ms in times_ms]


def test_no_power_is_measured_for_the_objective_time() -> None:
    assert promising("time", batch(1.0, 2.0), batch(1.0, 2.0)) == []


def test_the_fastest_quarter_is_promising() -> None:
    trials = batch(8.0, 1.0, 3.0, 2.0, 5.0, 4.0, 7.0, 6.0)
    assert promising("edp", trials, trials) == [1, 3]


def test_failed_trials_are_not_promising() -> None:
    trials = [Evaluation(outcome="timeout"), *batch(1.0)]
    assert promising("energy", trials, trials) == [1]


def test_what_cannot_become_the_best_is_not_measured() -> None:
    known = [
        Evaluation(outcome="timed", time_ms=1.0, power_w=400.0),
        Evaluation(outcome="timed", time_ms=9.0, power_w=100.0),
    ]
    # At the least power known, a quarter of the best's: twice its time costs the same product.
    assert promising("edp", batch(1.9), known)
    assert not promising("edp", batch(2.1), known)


@given(objectives, st.lists(TIMES, min_size=1, max_size=64), st.lists(measured(), max_size=9))
def test_the_fastest_of_a_batch_comes_first(
    objective: Metric, times_ms: list[float], known: list[Evaluation]
) -> None:
    chosen = [times_ms[place] for place in promising(objective, batch(*times_ms), known)]
    assert chosen == sorted(times_ms)[: len(chosen)]
    assert len(chosen) <= math.ceil(len(times_ms) / 4)
