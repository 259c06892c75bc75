"""Which kernels and caps are as good as the best, within noise."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from points import each_once

from pytest_gpuenergy.energy import estimate
from pytest_gpuenergy.record import (
    METRICS,
    WANDER,
    Interval,
    KernelInfo,
    Measurement,
    Metric,
    Window,
    WorkloadInfo,
)
from pytest_gpuenergy.report import best_of_each

TRIALS = 7
# Rounded, or two figures might differ by less than the mean of equal trials is off.
FIGURES = st.floats(0.01, 100.0).map(lambda value: float(f"{value:.9g}"))


def from_trials(
    rank: int, times: Sequence[float], energies: Sequence[float], wander: float = 0.0
) -> Measurement:
    """A measurement of a kernel with these times and energies, in ms and mJ.

    ``wander`` times `WANDER` is the error that the intervals include beside the trials' scatter.
    """
    products = [t * e for t, e in zip(times, energies, strict=True)]
    figures = [
        estimate(values, known_variance=(wander * WANDER[metric] * fmean(values)) ** 2)
        for metric, values in zip(METRICS, (times, energies, products), strict=True)
    ]
    values = {metric.field: one.value for metric, one in zip(METRICS, figures, strict=True)}
    ends = {
        f"{metric.field}_ci95": one.interval for metric, one in zip(METRICS, figures, strict=True)
    }
    return Measurement(
        node_id=f"test[k{rank:02d}]",
        workload=WorkloadInfo("case1", {}, 10**9, 10**6),
        kernel=KernelInfo(f"k{rank:02d}", "", "record", rank),
        outcome="correct",
        cap="300W",
        power_limit_w=300.0,
        trials=tuple(
            Window(0.3, 0.3 * e / t, 300 / t, 0.3) for t, e in zip(times, energies, strict=True)
        ),
        **values,
        **ends,
    )


def drawn(
    rng: np.random.Generator, times: Sequence[float], energies: Sequence[float], sd: float
) -> list[Measurement]:
    """One measurement of each kernel, with errors of its trials and of the card's state."""

    def trials(true: float, metric: Metric) -> list[float]:
        state = WANDER[metric] * rng.standard_normal()
        found: list[float] = (true * np.exp(state + sd * rng.standard_normal(TRIALS))).tolist()
        return found

    return [
        from_trials(rank, trials(t, Metric.TIME), trials(e, Metric.ENERGY), wander=1.0)
        for rank, (t, e) in enumerate(zip(times, energies, strict=True), start=1)
    ]


def best_of(rows: Sequence[Measurement]) -> Any:
    """The best of rows of one workload."""
    (found,) = best_of_each(rows)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("gap", "count"), each_once([0.0, 0.002, 0.01], [2, 9]))
def test_the_true_best_is_among_those_named_in_95_percent_of_cases(count, gap):
    rng = np.random.default_rng(count)
    true = [10.0] + [10.0 * (1 + gap * place) for place in range(1, count)]
    runs = 400
    held = Counter[Metric]()
    for _ in range(runs):
        ties = best_of(drawn(rng, true, true, sd=0.01)).ties
        held.update(metric for metric in METRICS if "k01" in ties[metric].kernels)
    # Two equal kernels are missed in exactly 5 %, of which 400 runs show 2 % more or less.
    least = 0.93 if (count, gap) == (2, 0.0) else 0.95
    assert all(held[metric] / runs >= least for metric in METRICS)


@pytest.mark.slow
def test_each_kernel_of_the_true_front_is_near_the_front_in_95_percent_of_cases():
    rng = np.random.default_rng(3)
    times, energies = [1.0, 1.005, 1.01, 1.02], [10.0, 9.95, 9.9, 10.05]
    runs = 400
    held = np.zeros(3)
    for _ in range(runs):
        near = {row.kernel.label for row in best_of(drawn(rng, times, energies, sd=0.005)).near}
        held += [f"k{rank:02d}" in near for rank in (1, 2, 3)]
    assert (held / runs >= 0.95).all()


@given(st.lists(st.tuples(FIGURES, FIGURES), min_size=1, max_size=8, unique_by=lambda p: p[0]))
def test_without_noise_there_is_one_best_and_the_front_is_the_pareto_front(figures):
    rows = [from_trials(rank, [t] * TRIALS, [e] * TRIALS) for rank, (t, e) in enumerate(figures, 1)]
    assert len(best_of(rows).ties[Metric.TIME].rows) == 1
    worse = [
        any(b.time_ms < a.time_ms and b.energy_mj < a.energy_mj for b in rows)  # type: ignore[operator]
        for a in rows
    ]
    assert best_of(rows).near == [a for a, bad in zip(rows, worse, strict=True) if not bad]


@settings(deadline=None)
@given(
    st.lists(st.tuples(FIGURES, FIGURES, st.floats(0.0, 0.5)), min_size=1, max_size=8),
    st.randoms(use_true_random=False),
)
def test_the_least_figure_comes_first_and_the_order_of_the_run_does_not_matter(figures, random):
    rows = [
        from_trials(
            rank,
            [t * (1 + wide * (place / 3 - 1)) for place in range(TRIALS)],
            [e * (1 + wide * (place / 3 - 1)) for place in range(TRIALS)],
        )
        for rank, (t, e, wide) in enumerate(figures, start=1)
    ]
    best, shuffled = best_of(rows), best_of(random.sample(rows, len(rows)))
    for metric, tied in best.ties.items():
        assert tied.best.figure(metric) == min(row.figure(metric) for row in rows)
        assert set(tied.kernels) == set(shuffled.ties[metric].kernels)
    assert [row for row in best.front if row not in best.near] == []
    assert set(map(id, best.near)) == set(map(id, shuffled.near))


def test_the_gain_of_a_board_does_not_cancel_between_boards(measured):
    def row(rank: int, energy_mj: float, board: str) -> Measurement:
        made: Measurement = measured(
            rank,
            energy_mj=energy_mj,
            gpu_uuid=board,
            energy_mj_ci95=Interval(energy_mj - 0.1, energy_mj + 0.1),
            trials=(Window(1.0, 200.0, 2000, 1.0),) * TRIALS,
        )
        return made

    one_board = [row(1, 100.0, "GPU-1"), row(2, 103.0, "GPU-1")]
    two_boards = [row(1, 100.0, "GPU-1"), row(2, 103.0, "GPU-2")]
    assert best_of(one_board).ties[Metric.ENERGY].kernels == ("k01",)
    assert best_of(two_boards).ties[Metric.ENERGY].kernels == ("k01", "k02")


def test_without_intervals_the_least_figure_is_the_best(measured, failed):
    rows = [measured(1, time_ms=0.5), measured(2, time_ms=0.49), failed(3)]
    assert best_of(rows).ties[Metric.TIME].kernels == ("k02",)
    assert best_of_each([failed(1)]) == []


@pytest.mark.parametrize(
    ("kernels", "words"),
    [
        (["k01"], "k01"),
        (["k01", "k03"], "k01, k03 within noise"),
        (["k01", "k03", "k02", "k05", "k04"], "k01, k03, k02 and 2 more within noise"),
    ],
)
def test_kernels_within_noise_are_named(measured, kernels, words):
    rows = [measured(int(kernel[1:])) for kernel in kernels]
    assert best_of(rows).where(Metric.EDP) == f"{words} at 450W"


@pytest.mark.parametrize(
    ("tied", "words"),
    [
        ([3], "450W"),
        ([2, 3, 4, 5], "any cap from 325 W"),
        ([1, 2], "any cap up to 325 W"),
        ([1, 2, 3, 4, 5], "any cap"),
        ([5, 1], "200W, 700W"),
    ],
)
def test_caps_within_noise_are_a_range_where_they_are_one(measured, tied, words):
    rows = [measured(cap=k, energy_mj=100.0 if k in tied else 200.0) for k in (1, 2, 3, 4, 5)]
    assert best_of(rows).caps == words


def test_an_extreme_figure_is_never_as_good(measured):
    rows = [measured(1, time_ms=1e-6), measured(2, time_ms=math.inf)]
    assert best_of(rows).ties[Metric.TIME].kernels == ("k01",)
