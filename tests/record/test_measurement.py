"""The record of one item."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from msgspec.structs import replace
from record_strategies import CHECKS, RUNS, measurements

from pytest_gpuenergy.record import (
    FIGURES,
    AnchorCheck,
    Estimate,
    Interval,
    KernelInfo,
    Measurement,
    Metric,
    RunInfo,
    Window,
    WorkloadInfo,
    check,
)
from pytest_gpuenergy.report import Report, RunFolder, json_document, load_report
from pytest_gpuenergy.support import FormError, ReportError, ReportInputError, decode, encode


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(measurements())
def test_a_measurement_survives_json(measurement):
    again = decode(encode(measurement), Measurement)
    check(again)
    assert again == measurement


@given(RUNS)
def test_a_run_survives_json(run):
    assert decode(encode(run), RunInfo) == run


@given(CHECKS)
def test_an_anchor_check_survives_json(anchor):
    assert decode(encode(anchor), AnchorCheck) == anchor


def test_a_record_cannot_be_changed(measured):
    with pytest.raises(AttributeError):
        measured().cap = "200W"


def test_identity_leaves_out_where_the_item_lies(measured):
    assert measured(node_id="here").identity == measured(node_id="there").identity


@pytest.mark.parametrize(
    "change", [{"workload": "case2"}, {"rank": 2}, {"cap": 4}, {"cache": "cold"}], ids=repr
)
def test_identity_tells_what_must_not_be_compared(measured, change):
    assert measured(**change).identity != measured().identity


def test_a_failed_kernel_is_not_measured(measured, failed):
    assert measured().measured
    assert not failed().measured


def test_a_flag_is_added_once(measured):
    assert measured().flagged("drift", "host_gaps").flagged("drift").validity == (
        "drift",
        "host_gaps",
    )


def test_a_metric_is_its_name():
    assert [*Metric] == ["time", "energy", "edp"]
    assert f"{Metric.EDP} {Metric.EDP.label} {Metric.EDP.unit}" == "edp EDP mJ·ms"


@pytest.mark.parametrize(("metric", "figure"), [("time", 0.5), ("energy", 8.0), ("edp", 4.0)])
def test_a_figure_has_an_estimate_where_there_is_an_interval(measured, metric, figure):
    which = Metric(metric)
    bare = measured(time_ms=0.5, energy_mj=8.0)
    assert (bare.figure(which), bare.interval(which), bare.estimate(which)) == (figure, None, None)
    ends = Interval(figure / 2, figure * 2)
    whole = measured(time_ms=0.5, energy_mj=8.0, **{f"{which.field}_ci95": ends})
    assert whole.interval(which) == ends
    assert whole.estimate(which) == Estimate(figure, figure / 2, figure * 2)
    assert whole.estimate(which).interval == ends


def test_without_figures_there_is_no_estimate(failed):
    assert [failed().figure(metric) for metric in Metric] == [None] * 3
    assert [failed().estimate(metric) for metric in Metric] == [None] * 3


def test_a_trial_has_each_metric():
    trial = Window(seconds=0.2, joules=0.8, launches=100.0, busy_seconds=0.05)
    assert [getattr(trial, metric.field) for metric in Metric] == [0.5, 8.0, 4.0]


FAULTS = ["correctness", "compile", "runtime", "timeout", "constraints"]


@pytest.fixture
def loaded(tmp_path: Path, run_info: Callable[..., RunInfo]) -> Callable[..., Report]:
    """Writes measurements into a report and reads it again."""

    def read(*given: Measurement) -> Report:
        path = tmp_path / "report.json"
        path.write_text(json_document(Report(run_info(), given)))
        return load_report(path)

    return read


@pytest.mark.parametrize("outcome", FAULTS)
def test_a_kernel_that_is_wrong_has_no_figures(measured, loaded, outcome):
    with pytest.raises(
        ReportInputError, match=rf"measurements\[1\].outcome is '{outcome}': only a correct kernel"
    ):
        loaded(measured(1), measured(2, outcome=outcome))


@pytest.mark.parametrize("outcome", FAULTS)
def test_a_kernel_that_is_wrong_has_no_intervals(failed, loaded, outcome):
    ends = Interval(0.0, 1.0)
    with pytest.raises(ReportInputError, match="_ci95 is present, although there are no figures"):
        loaded(failed(1, outcome=outcome, edp_mj_ms_ci95=ends))


def test_an_id_occurs_once(measured, loaded):
    with pytest.raises(
        ReportInputError, match=r"measurements\[2\].node_id is that of measurements\[0\], 'a'"
    ):
        loaded(measured(1, node_id="a"), measured(2, node_id="b"), measured(3, node_id="a"))


@pytest.mark.parametrize("factor", [1e-9, 0.5, 0.99, 1.01, 2.0, 1e9])
def test_an_edp_is_time_times_energy(measured, loaded, factor):
    with pytest.raises(ReportInputError, match=r"edp_mj_ms is .* but time_ms times energy_mj is"):
        loaded(measured(1, edp_mj_ms=50.0 * factor))


@given(st.floats(1e-5, 1e5), st.floats(0.1, 5e3))
def test_figures_rounded_to_four_digits_are_taken(time_ms, power_w):
    exact = {"time_ms": time_ms, "energy_mj": time_ms * power_w, "power_w": power_w}
    exact |= {"edp_mj_ms": time_ms * time_ms * power_w}
    rounded = {name: float(f"{value:.4g}") for name, value in exact.items()}
    check(with_figures(**rounded))


def test_an_edp_of_trials_that_scatter_is_their_mean(measured, loaded):
    trials = (Window(1.0, 100.0, 1000.0, 1.0), Window(1.0, 100.0, 500.0, 1.0))
    time_ms, energy_mj, edp_mj_ms = 1.5, 150.0, (100.0 + 400.0) / 2
    found = measured(1, time_ms=time_ms, energy_mj=energy_mj, edp_mj_ms=edp_mj_ms, trials=trials)
    assert loaded(found).measurements == (found,)


@pytest.mark.parametrize(
    "figures",
    [
        {"time_ms": 0.0},
        {"time_ms": 1e-7},
        {"time_ms": 1e300},
        {"energy_mj": 0.0},
        {"energy_mj": 1e300},
        {"power_w": 0.0},
        {"power_w": 1e5},
        {"gflops": -1.0},
        {"gflops": 1e12},
        {"gflops_per_w": -1.0},
        {"power_limit_w": 1e6},
        {"enforced_power_limit_w": 1e6},
        {"trials": (Window(1.0, 1e5, 1.0, 1.0),)},
        {"warm_trials": (Window(1.0, 1e5, 1.0, 1.0),)},
    ],
    ids=str,
)
def test_what_no_gpu_can_do_is_refused(figures):
    with pytest.raises(FormError, match=r"not possible|but energy_mj by time_ms"):
        check(with_figures(**figures))


@pytest.mark.parametrize("power_w", [1.0, 40.0, 450.0])
def test_power_agrees_with_energy_and_time(power_w):
    with pytest.raises(FormError, match=r"power_w is .* but energy_mj by time_ms is 200 W"):
        check(with_figures(power_w=power_w))


def test_gaps_of_the_host_lower_the_power_of_a_launch_only():
    check(with_figures(power_w=80.0, validity=("host_gaps",)))
    with pytest.raises(FormError, match="power_w is"):
        check(with_figures(power_w=500.0, validity=("host_gaps",)))


@given(measurements())
def test_a_possible_measurement_with_another_outcome_is_refused(measurement):
    if measurement.measured:
        with pytest.raises(FormError, match="only a correct kernel has figures"):
            check(replace(measurement, outcome="runtime"))


def test_an_impossible_measurement_is_not_stored(tmp_path, measured, run_info):
    folder = RunFolder.create(tmp_path, run_info())
    with pytest.raises(ReportError, match="edp_mj_ms is 1"):
        folder.append(measured(1, edp_mj_ms=1.0))
    assert folder.load().measurements == ()


def test_a_line_that_is_impossible_is_named(tmp_path, measured, run_info):
    folder = RunFolder.create(tmp_path, run_info())
    folder.append(measured(1))
    path = folder.path / "measurements.jsonl"
    line = json.loads(path.read_text()) | {"outcome": "runtime"}
    path.write_text(json.dumps(line) + "\n")
    with pytest.raises(ReportInputError, match=r"jsonl, line 1: time_ms is present, although"):
        folder.load()


def with_figures(**changes: Any) -> Measurement:
    """A possible measurement, with whatever is given changed."""
    values: dict[str, Any] = dict.fromkeys(FIGURES, 1.0)
    values |= {"time_ms": 0.5, "energy_mj": 100.0, "edp_mj_ms": 50.0, "power_w": 200.0}
    changed = {**values, **changes}
    if "edp_mj_ms" not in changes:
        changed["edp_mj_ms"] = changed["time_ms"] * changed["energy_mj"]
    return Measurement(
        node_id="test",
        workload=WorkloadInfo("w", {}, 1, 1),
        kernel=KernelInfo("k", "", "file"),
        outcome="correct",
        cap="current",
        **changed,
    )
