"""Measurements in a file that cannot have been made are refused, with their place."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace
from record_strategies import measurements

from pytest_gpuenergy.record import (
    FIGURES,
    Interval,
    KernelInfo,
    Measurement,
    RunInfo,
    Window,
    WorkloadInfo,
    check,
)
from pytest_gpuenergy.report import Report, RunFolder, json_document, load_report
from pytest_gpuenergy.support import FormError, ReportError, ReportInputError

Make = Callable[..., Any]
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
def test_a_kernel_that_is_wrong_has_no_figures(measured: Make, loaded: Make, outcome: str) -> None:
    with pytest.raises(
        ReportInputError, match=rf"measurements\[1\].outcome is '{outcome}': only a correct kernel"
    ):
        loaded(measured(1), measured(2, outcome=outcome))


@pytest.mark.parametrize("outcome", FAULTS)
def test_a_kernel_that_is_wrong_has_no_intervals(failed: Make, loaded: Make, outcome: str) -> None:
    ends = Interval(0.0, 1.0)
    with pytest.raises(ReportInputError, match="_ci95 is present, although there are no figures"):
        loaded(failed(1, outcome=outcome, edp_mj_ms_ci95=ends))


def test_an_id_occurs_once(measured: Make, loaded: Make) -> None:
    with pytest.raises(
        ReportInputError, match=r"measurements\[2\].node_id is that of measurements\[0\], 'a'"
    ):
        loaded(measured(1, node_id="a"), measured(2, node_id="b"), measured(3, node_id="a"))


@pytest.mark.parametrize("factor", [1e-9, 0.5, 0.99, 1.01, 2.0, 1e9])
def test_an_edp_is_time_times_energy(measured: Make, loaded: Make, factor: float) -> None:
    with pytest.raises(ReportInputError, match=r"edp_mj_ms is .* but time_ms times energy_mj is"):
        loaded(measured(1, edp_mj_ms=50.0 * factor))


@given(st.floats(1e-5, 1e5), st.floats(0.1, 5e3))
def test_figures_rounded_to_four_digits_are_taken(time_ms: float, power_w: float) -> None:
    exact = {"time_ms": time_ms, "energy_mj": time_ms * power_w, "power_w": power_w}
    exact |= {"edp_mj_ms": time_ms * time_ms * power_w}
    rounded = {name: float(f"{value:.4g}") for name, value in exact.items()}
    check(with_figures(**rounded))


def test_an_edp_of_trials_that_scatter_is_their_mean(measured: Make, loaded: Make) -> None:
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
def test_what_no_gpu_can_do_is_refused(figures: dict[str, Any]) -> None:
    with pytest.raises(FormError, match=r"not possible|but energy_mj by time_ms"):
        check(with_figures(**figures))


@pytest.mark.parametrize("power_w", [1.0, 40.0, 450.0])
def test_power_agrees_with_energy_and_time(power_w: float) -> None:
    with pytest.raises(FormError, match=r"power_w is .* but energy_mj by time_ms is 200 W"):
        check(with_figures(power_w=power_w))


def test_gaps_of_the_host_lower_the_power_of_a_launch_only() -> None:
    check(with_figures(power_w=80.0, validity=("host_gaps",)))
    with pytest.raises(FormError, match="power_w is"):
        check(with_figures(power_w=500.0, validity=("host_gaps",)))


@given(measurements())
def test_a_possible_measurement_with_another_outcome_is_refused(measurement: Measurement) -> None:
    if measurement.measured:
        with pytest.raises(FormError, match="only a correct kernel has figures"):
            check(replace(measurement, outcome="runtime"))


def test_an_impossible_measurement_is_not_stored(
    tmp_path: Path, measured: Make, run_info: Make
) -> None:
    folder = RunFolder.create(tmp_path, run_info())
    with pytest.raises(ReportError, match="edp_mj_ms is 1"):
        folder.append(measured(1, edp_mj_ms=1.0))
    assert folder.load().measurements == ()


def test_a_line_that_is_impossible_is_named(tmp_path: Path, measured: Make, run_info: Make) -> None:
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
