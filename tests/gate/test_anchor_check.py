"""The check of an anchor kernel that was measured again, and how it is stored."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from msgspec.structs import replace

from pytest_gpuenergy.gate import judge_check, unchecked
from pytest_gpuenergy.record import AnchorCheck, Conditions, Estimate, Interval, Measurement, Window
from pytest_gpuenergy.report import (
    RunFolder,
    anchor_lines,
    load_report,
    markdown,
    merge,
    page_data,
    write_json,
)
from pytest_gpuenergy.support import ReportError

Make = Callable[..., Any]
PLAIN = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
TRIALS = tuple(Window(0.3, 100.0, 600.0, 0.299) for _ in range(4))


@pytest.fixture
def taken(measured: Make) -> Callable[..., Measurement]:
    """A measurement with ``factor`` times the usual figures and relative half-widths ``half``."""

    def make(factor: float = 1.0, half: float = 0.002, **changes: Any) -> Measurement:
        time_ms, energy_mj = 0.5 * factor, 100.0 * factor

        def around(value: float) -> Interval:
            return Interval(value * (1 - half), value * (1 + half))

        values: dict[str, Any] = {
            "trials": TRIALS,
            "time_ms_ci95": around(time_ms),
            "energy_mj_ci95": around(energy_mj),
            "edp_mj_ms_ci95": around(time_ms * energy_mj),
            "end": Conditions(47, 1980, 3201, 0, 450_000),
            "started": "2026-01-02T03:04:05+00:00",
            "gpu_uuid": "GPU-1",
        }
        made: Measurement = measured(time_ms=time_ms, energy_mj=energy_mj, **{**values, **changes})
        return made

    return make


@pytest.fixture
def runs_with(report: Make) -> Callable[..., list[Any]]:
    """Reports of successive runs with one check each."""
    return lambda *checks: [
        replace(report(run_id=str(day), started=f"2026-01-0{day}"), anchors=(one,))
        for day, one in enumerate(checks, start=1)
    ]


def check(**changes: Any) -> AnchorCheck:
    values: dict[str, Any] = {
        "node_id": "test_scale[450W]",
        "workload": "scale",
        "kernel": "k01",
        "cap": "450W",
        "verdict": "good",
        "since": "2026-01-02T03:04:05+00:00",
        "started": "2026-01-02T03:09:05+00:00",
        "time": Estimate(1.001, 0.999, 1.003),
        "energy": Estimate(0.98, 0.97, 0.99),
        "edp": Estimate(0.981, 0.97, 0.992),
        "temperature_c": 51,
    }
    return AnchorCheck(**{**values, **changes})


@PLAIN
@given(factor=st.floats(0.5, 2.0), half=st.floats(1e-6, 0.05))
def test_drift_is_a_change_beyond_the_bound_that_is_sure(taken, factor, half):
    found = judge_check(taken(half=half), taken(factor, half), ["a"])
    assert found.time is not None
    assert found.edp is not None
    assert found.time.low < found.time.value < found.time.high
    assert math.isclose(found.time.value, factor)
    assert math.isclose(found.edp.value, factor**2)
    change = max(factor**2, factor**-2) - 1  # of the EDP, which changes most
    if change > 0.03 * 1.001 and half < 0.002:
        assert found.verdict == "drift"
    if change < 0.03 * 0.999 or half > max(factor**2, factor**-2) - 1 + 0.01:
        assert found.verdict == "good"


def test_a_check_tells_where_and_when(taken):
    again = taken(end=Conditions(58, 1980, 3201, 0, 450_000), started="2026-01-02T03:10:00+00:00")
    found = judge_check(taken(), again, ["a", "b"])
    assert (found.workload, found.kernel, found.cap, found.gpu_uuid) == (
        "case1",
        "k01",
        "450W",
        "GPU-1",
    )
    assert (found.first_temperature_c, found.temperature_c) == (47, 58)
    assert (found.since[11:16], found.started[11:16]) == ("03:04", "03:10")
    assert found.items == ("a", "b")


def test_what_failed_or_is_flagged_itself_is_no_good_check(taken, failed):
    assert judge_check(taken(), failed(started="x"), []).verdict == "unsure"
    assert judge_check(taken(), taken(validity=("host_gaps",)), []).verdict == "unsure"


def test_drift_is_drift_although_the_check_is_flagged(taken):
    hot = taken(1.3, validity=("sw_thermal_slowdown",))
    assert judge_check(taken(), hot, []).verdict == "drift"


def test_what_no_good_check_speaks_for_is_found(taken):
    first = taken(node_id="first")
    early, late = "2026-01-02T03:05:00+00:00", "2026-01-02T03:15:00+00:00"
    rows = [
        first,
        taken(node_id="checked", started=early),
        taken(node_id="again", started=late),
        taken(node_id="bad"),
        taken(node_id="flagged", validity=("host_gaps",)),
        taken(node_id="other-card", gpu_uuid="GPU-2"),
        taken(node_id="other-cap", cap=1),
        taken(node_id="other-lock", locked_sm_clock_max_mhz=1500),
    ]
    checks = [check(items=("checked", "again")), check(verdict="unsure", items=("bad",))]
    assert [m.node_id for m in unchecked(rows, checks, first)] == ["again", "bad"]


def test_checks_are_kept_line_by_line_and_in_the_json(tmp_path, run_info, measured):
    folder = RunFolder.create(tmp_path, run_info())
    folder.append(measured(1))
    checks = (check(), check(verdict="drift", items=("a", "b")), check(time=None, error="lost"))
    for one in checks:
        folder.append(one, "check")
    with (folder.path / "anchors.jsonl").open("a") as file:
        file.write('{"node_id": "cut sh')
    report = folder.load()
    assert report.anchors == checks
    write_json(report, tmp_path / "r.json")
    assert load_report(tmp_path / "r.json") == report


def test_a_report_without_checks_is_read(tmp_path, report, measured):
    write_json(report(measured(1)), tmp_path / "r.json")
    document = json.loads((tmp_path / "r.json").read_text())
    del document["anchors"]
    (tmp_path / "r.json").write_text(json.dumps(document))
    assert load_report(tmp_path / "r.json").anchors == ()


@pytest.mark.parametrize("anchors", [{}, [1], [{"node_id": "x"}]], ids=str)
def test_damaged_checks_are_refused(tmp_path, report, anchors):
    write_json(report(), tmp_path / "r.json")
    document = json.loads((tmp_path / "r.json").read_text()) | {"anchors": anchors}
    (tmp_path / "r.json").write_text(json.dumps(document))
    with pytest.raises(ReportError):
        load_report(tmp_path / "r.json")


def test_merged_runs_have_the_checks_of_all(runs_with):
    first, second = runs_with(check(), check(verdict="drift"))
    assert merge([second, first]).anchors == first.anchors + second.anchors


def test_the_summary_names_the_largest_change_and_what_is_flagged(measured):
    rows = [measured(1), measured(2, validity=("drift",))]
    checks = [check(), check(verdict="drift", time=Estimate(1.08, 1.07, 1.09))]
    checks.append(check(verdict="unsure", time=None, energy=None, edp=None, error="It is lost."))
    assert list(anchor_lines(rows, checks, emulated=True)) == [
        "anchor kernels (emulated) were measured again 3 times, "
        "largest change: time +8.0 % [+7.0, +9.0] (k01 of scale at 450W)",
        "drift in 1 of these checks: 1 measurements are flagged drift",
        "1 of these checks could not be judged: It is lost.",
    ]
    assert list(anchor_lines(rows, [], emulated=True)) == []


@PLAIN
@given(value=st.floats(allow_nan=False, allow_infinity=False))
def test_ratios_that_cannot_be_are_shown_without_a_fault(report, value):
    odd = check(energy=Estimate(value, value, value))
    assert list(anchor_lines([], [odd], emulated=False))
    json.dumps(page_data(replace(report(), anchors=(odd,))), allow_nan=False)


def test_names_in_checks_are_text_in_markdown(report):
    text = markdown(replace(report(), anchors=(check(kernel="<b>`|"),)))
    assert "anchor kernels (emulated) were measured again once" in text
    assert "<b>" not in text
