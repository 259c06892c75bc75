"""What a timeline says of windows and of places in memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pytest_gpuenergy.devices import Timeline
from pytest_gpuenergy.energy import cut_windows, placement_variance
from pytest_gpuenergy.record import Window


def ascending(least: int = 2) -> st.SearchStrategy[list[float]]:
    steps = st.lists(st.floats(0.01, 1.0), min_size=least, max_size=30)
    return steps.map(lambda values: np.cumsum(values).tolist())


@given(ascending(), ascending(), ascending(), st.integers(0, 2**32))
def test_trials_add_up_to_the_whole_window(
    batches_s: list[float], edges_s: list[float], counts: list[float], seed: int
) -> None:
    count = min(len(batches_s), len(counts))
    time_s, launches = np.array(batches_s[:count]), np.array(counts[:count])
    timeline = Timeline(time_s, launches, 0.9 * time_s)
    energies_mj = np.random.default_rng(seed).integers(1, 10**6, len(edges_s)).cumsum()
    trials = cut_windows(edges_s, energies_mj.tolist(), timeline)
    ends_s = [edges_s[0], edges_s[-1]]
    assert len(trials) == len(edges_s) - 1
    assert sum(t.seconds for t in trials) == pytest.approx(edges_s[-1] - edges_s[0])
    assert sum(t.joules for t in trials) == pytest.approx((energies_mj[-1] - energies_mj[0]) / 1e3)
    for name, column in (("launches", launches), ("busy_seconds", timeline.busy_s)):
        inside = np.diff(np.interp(ends_s, time_s, column))[0]
        assert sum(getattr(t, name) for t in trials) == pytest.approx(inside, abs=1e-9)


def test_a_trial_of_a_known_rate() -> None:
    timeline = Timeline(np.array([0.0, 10.0]), np.array([0.0, 1000.0]), np.array([0.0, 9.0]))
    (trial,) = cut_windows([2.0, 4.0], [5000, 6000], timeline)
    assert (trial.seconds, trial.joules, trial.launches) == pytest.approx((2.0, 1.0, 200.0))
    assert (trial.time_ms, trial.energy_mj) == pytest.approx((9.0, 5.0))


def test_figures_of_a_trial_are_of_one_launch() -> None:
    trial = Window(seconds=1.0, joules=2.0, launches=100.0, busy_seconds=0.5)
    assert (trial.time_ms, trial.energy_mj) == (5.0, 20.0)


def turns(times_s: list[float], rounds: int, *, launches: int = 100) -> Timeline:
    """Batches of which each in turn takes one of ``times_s`` a launch."""
    busy_s = np.cumsum(launches * np.array(times_s * rounds))
    count = launches * np.arange(1.0, len(busy_s) + 1)
    return Timeline(busy_s, count, busy_s, placements=len(times_s))


@given(st.lists(st.floats(1e-6, 2e-6), min_size=2, max_size=12), st.integers(2, 9))
def test_places_that_differ_leave_the_mean_unsure(times_s: list[float], rounds: int) -> None:
    timeline = turns(times_s, rounds)
    expected = np.var(times_s, ddof=1) / len(times_s) / np.mean(times_s) ** 2
    found = placement_variance(timeline, 0.0, float(timeline.time_s[-1]))
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-15)


def test_one_place_says_nothing_of_others() -> None:
    timeline = turns([1e-6], 20)
    assert placement_variance(timeline, 0.0, float(timeline.time_s[-1])) == 0.0


def test_batches_before_and_after_the_trials_do_not_count() -> None:
    slow, fast = turns([9e-6, 1e-6], 4), turns([2e-6, 2e-6], 4)
    time_s = np.concatenate([slow.time_s, slow.time_s[-1] + fast.time_s])
    launches = np.concatenate([slow.launches, slow.launches[-1] + fast.launches])
    both = Timeline(time_s, launches, time_s, placements=2)
    begin_s, end_s = float(slow.time_s[-1]), float(time_s[-1])
    assert placement_variance(both, begin_s, end_s) == pytest.approx(0.0, abs=1e-15)
    assert placement_variance(both, 0.0, begin_s) > 0.1


def test_a_place_that_had_no_turn_is_left_out() -> None:
    timeline = turns([1e-6, 2e-6, 3e-6], 1)
    assert placement_variance(timeline, float(timeline.time_s[1]), float(timeline.time_s[2])) == 0.0
