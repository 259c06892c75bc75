"""The names of a metric and the attribute that holds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pytest_gpuenergy.record import Estimate, Interval, Metric, Window

Make = Callable[..., Any]


def test_a_metric_is_its_name() -> None:
    assert [*Metric] == ["time", "energy", "edp"]
    assert f"{Metric.EDP} {Metric.EDP.label} {Metric.EDP.unit}" == "edp EDP mJ·ms"


@pytest.mark.parametrize(("metric", "figure"), [("time", 0.5), ("energy", 8.0), ("edp", 4.0)])
def test_a_figure_has_an_estimate_where_there_is_an_interval(
    measured: Make, metric: str, figure: float
) -> None:
    which = Metric(metric)
    bare = measured(time_ms=0.5, energy_mj=8.0)
    assert (bare.figure(which), bare.interval(which), bare.estimate(which)) == (figure, None, None)
    ends = Interval(figure / 2, figure * 2)
    whole = measured(time_ms=0.5, energy_mj=8.0, **{f"{which.field}_ci95": ends})
    assert whole.interval(which) == ends
    assert whole.estimate(which) == Estimate(figure, figure / 2, figure * 2)
    assert whole.estimate(which).interval == ends


def test_without_figures_there_is_no_estimate(failed: Make) -> None:
    assert [failed().figure(metric) for metric in Metric] == [None] * 3
    assert [failed().estimate(metric) for metric in Metric] == [None] * 3


def test_a_trial_has_each_metric() -> None:
    trial = Window(seconds=0.2, joules=0.8, launches=100.0, busy_seconds=0.05)
    assert [getattr(trial, metric.field) for metric in Metric] == [0.5, 8.0, 4.0]
