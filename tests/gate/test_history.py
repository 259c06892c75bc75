"""A metric over the runs of a project, and changes of its level."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from gate_simulation import Session, drawn_measurement
from hypothesis import given, settings, strategies as st
from msgspec.structs import replace

from pytest_gpuenergy.gate import (
    change_points,
    history,
    history_json,
    history_markdown,
    history_text,
)
from pytest_gpuenergy.record import Metric, RunInfo
from pytest_gpuenergy.report import Report

Runs = Callable[..., list[Report]]


@pytest.fixture
def runs(run_info: Callable[..., RunInfo]) -> Runs:
    """One run per day, whose kernel k01 has the given EDP in mJ ms."""

    def make(edps: Sequence[float], first: int = 0, **changes: Any) -> list[Report]:
        rng = np.random.default_rng(first)
        measure = drawn_measurement(rng)
        return [
            Report(
                run_info(
                    run_id=f"run{first + day:03d}",
                    started=f"2026-01-01T{first + day:02d}:00:00+00:00",
                    git_revision=f"{first + day:040d}",
                    **changes,
                ),
                (measure("k01", Session(0.0, 0.002 * rng.standard_normal()), edp),),
            )
            for day, edp in enumerate(edps)
        ]

    return make


def test_a_change_is_found_with_its_size_and_revisions(runs):
    (series,) = history(reversed(runs([1.0] * 10 + [1.06] * 8)), Metric.EDP)
    assert [point.run.run_id for point in series.points] == [f"run{n:03d}" for n in range(18)]
    (change,) = series.changes
    assert change.relative == pytest.approx(0.06, abs=0.005)
    assert (change.last.run.run_id, change.first.run.run_id) == ("run009", "run010")
    assert series.spread == pytest.approx(0.0025, abs=0.0015)


def test_boards_are_kept_apart(runs):
    found = history(runs([1.0] * 8) + runs([1.1] * 8, 8, gpu_uuid="GPU-2"), Metric.EDP)
    assert [len(series.points) for series in found] == [8, 8]
    assert not any(series.changes for series in found)


def test_flagged_points_are_shown_and_not_used(runs):
    reports = runs([1.0] * 12)
    flagged = [
        replace(
            report,
            measurements=tuple(
                replace(m, validity=("not_steady",), edp_mj_ms=9.0) for m in report.measurements
            ),
        )
        for report in reports[6:]
    ]
    (series,) = history(reports[:6] + flagged, Metric.EDP)
    assert len(series.points) == 12
    assert sum(not point.flags for point in series.points) == 6
    assert series.changes == ()
    assert sum("not_steady" in line for line in history_text([series])) == 6


def test_items_of_one_name_are_kept_apart(runs):
    reports = [
        replace(
            report,
            measurements=tuple(
                replace(m, node_id=f"test_a.py::test[{size}]", edp_mj_ms=size)
                for m in report.measurements
                for size in (1.0, 2.0)
            ),
        )
        for report in runs([1.0] * 4)
    ]
    found = history(reports, Metric.EDP)
    assert [series.item for series in found] == ["test_a.py::test[1.0]", "test_a.py::test[2.0]"]
    assert [series.spread for series in found] == [0, 0]
    lines = list(history_text(found))
    assert lines[0].startswith("simulated-k01-current (test_a.py::test[1.0]) EDP, NVIDIA H200")


@pytest.mark.parametrize(
    ("words", "count"), [([], 1), (["K01", "simul"], 1), (["k01-current"], 1), (["k02"], 0)]
)
def test_kernels_are_chosen_by_words(runs, words, count):
    assert len(history(runs([1.0]), Metric.TIME, words)) == count


def test_clocks_have_series_of_their_own_in_order(runs):
    def at_clocks(report: Report) -> Report:
        (row,) = report.measurements
        rows = [
            replace(row, node_id=label, cap=label, power_limit_w=450.0, sm_clock_mhz=clock)
            for label, clock in (("450W", None), ("450W-1500MHz", 1500), ("450W-990MHz", 990))
        ]
        return replace(report, measurements=tuple(rows))

    found = history(map(at_clocks, runs([1.0] * 3)), Metric.EDP, ["450W"])
    assert [one.identity.cap for one in found] == ["450W-990MHz", "450W-1500MHz", "450W"]
    assert [len(one.points) for one in found] == [3, 3, 3]
    assert "k01-450W-990MHz EDP" in "\n".join(history_text(found))


def test_a_spread_needs_runs(runs):
    (series,) = history(runs([1.0, 1.0]), Metric.EDP)
    assert series.spread is None


def test_the_views_say_the_same(runs):
    found = history(runs([1.0] * 10 + [1.06] * 8), Metric.EDP)
    document = json.loads(history_json(found))
    (series,) = document["series"]
    assert (series["kernel"], series["unit"], len(series["points"])) == ("k01", "mJ·ms", 18)
    assert [change["run_id"] for change in series["changes"]] == ["run010"]
    lines = list(history_text(found))
    assert lines[0].startswith("simulated-k01-current EDP, NVIDIA H200 GPU-1 (emulated), 18 runs")
    assert lines[-1].startswith("  changed by +")
    assert "from run run010 on, revision 0" in lines[-1]
    assert "| simulated-k01-current | EDP | NVIDIA H200 (emulated) | 18 |" in history_markdown(
        found
    )


LEVELS = st.lists(st.floats(-1e3, 1e3), max_size=25)


def test_a_step_is_found_where_it_is():
    rng = np.random.default_rng(1)
    values = [*rng.normal(100, 0.3, 12), *rng.normal(105, 0.3, 9)]
    (change,) = change_points(values)
    assert change.index == 12
    assert change.p <= 0.01


def test_two_steps_are_found():
    rng = np.random.default_rng(2)
    values = [rng.normal(level, 0.3, 15) for level in (100, 105, 95)]
    assert [c.index for c in change_points(np.concatenate(values).tolist())] == [15, 30]


def test_an_outlier_is_no_change():
    values = np.random.default_rng(3).normal(100, 0.3, 20).tolist()
    values[10] = 1e6
    assert change_points(values) == []


@pytest.mark.slow
def test_noise_seldom_has_changes():
    rng = np.random.default_rng(4)
    runs = 300
    found = sum(bool(change_points(rng.normal(0, 1, 20).tolist())) for _ in range(runs))
    assert found / runs <= 0.01 + 4 * (0.01 * 0.99 / runs) ** 0.5


@pytest.mark.parametrize("values", [[], [1.0], [1.0] * 30, [1.0, 2.0] * 2])
def test_nothing_to_find(values):
    assert change_points(values) == []


@pytest.mark.slow
@settings(deadline=None)
@given(LEVELS, st.floats(0.1, 10), st.floats(-10, 10))
def test_only_the_order_of_values_matters(values, scale, offset):
    rounded = [round(value) for value in values]
    moved = [scale * value + offset for value in rounded]
    assert change_points(moved) == change_points(rounded)


@settings(deadline=None)
@given(LEVELS)
def test_changes_leave_enough_on_either_side(values):
    cuts = [0, *(change.index for change in change_points(values)), len(values)]
    if len(cuts) > 2:
        assert min(np.diff(cuts)) >= 3
