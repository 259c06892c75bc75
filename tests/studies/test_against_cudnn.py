"""The table of our kernels against cuDNN and TVM's tuner, and whether the aim is reached."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import against_cudnn
import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace
from report_fixtures import a_run

from pytest_gpuenergy.record import KernelInfo, Measurement, WorkloadInfo
from pytest_gpuenergy.report import Report, write_json
from pytest_gpuenergy.support import plain

RUN = a_run(gpu_name="Test GPU", emulated=False)
Show = Callable[..., str]


def measured(case: str, label: str, time_us: float, power_w: float = 400.0) -> Measurement:
    """One of ours, or of cuDNN's when its label says so; the figures are invented."""
    time_ms = time_us / 1e3
    return Measurement(
        node_id=f"{case}-{label}",
        workload=WorkloadInfo(case, {}, 10**9, 10**6),
        kernel=KernelInfo(label, "", "callable" if "-" in label else "tvm-metaschedule"),
        outcome="correct",
        cap="current",
        time_ms=time_ms,
        energy_mj=power_w * time_ms,
        edp_mj_ms=power_w * time_ms**2,
        power_w=power_w,
        gflops=1.0,
        gflops_per_w=1.0,
    )


@pytest.fixture
def show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Show:
    """What the command prints of some measurements; ``stock`` are those of TVM's own tuner."""

    def run(*rows: Measurement, stock: tuple[Measurement, ...] = (), code: int = 0) -> str:
        write_json(Report(RUN, rows), tmp_path / "r.json")
        arguments = [str(tmp_path / "r.json")]
        if stock:
            kernels = {"stock": [{"outcome": "compile"}, *map(plain, stock)]}
            content = {
                "bench": "tuning/against_stock",
                "about": {"gpu": "Test GPU"},
                "results": {"case1/stock": {"trials": 3}, "case1/measured": {"kernels": kernels}},
            }
            (tmp_path / "stock.json").write_text(json.dumps(content))
            arguments += ["--stock", str(tmp_path / "stock.json")]
        assert against_cudnn.main(arguments) == code
        streams = capsys.readouterr()
        return streams.out + streams.err

    return run


def test_the_best_of_kernels_and_of_formats_count(show):
    shown = show(
        measured("case1", "k01", 90),
        measured("case1", "k02", 80),
        measured("case1", "cudnn-contiguous", 120),
        measured("case1", "cudnn-channels_last", 100),
        measured("case1", "cudnn-contiguous-tf32", 20),
    )
    assert "| case1 | 80.00 | 100.00 | 20.00 | 1.250x |" in shown
    assert "| geometric mean |  |  |  | 1.250x |" in shown
    assert "is reached: 1.250x over 1 workloads, lowest 1.250x (case1)." in shown


def test_each_metric_has_a_best_of_its_own(show):
    thrifty = measured("case1", "k02", 90, power_w=300)
    shown = show(measured("case1", "k01", 80), thrifty, measured("case1", "cudnn-contiguous", 100))
    assert "| case1 | 80.00 | 100.00 | 1.250x |" in shown
    assert "| case1 | 27.000 | 40.000 | 1.481x |" in shown


def test_tvms_tuner_has_a_column(show):
    stock = (measured("case1", "stock-1", 130), measured("case1", "stock-2", 125))
    shown = show(
        measured("case1", "k01", 80),
        measured("case2", "k01", 80),
        measured("case1", "cudnn-contiguous", 100),
        stock=stock,
    )
    assert "| case1 | 80.00 | 125.00 | 100.00 | 1.250x |" in shown
    assert "| case2 | 80.00 |  |  |  |" in shown
    assert "over 1 workloads (1 left out for lack of figures)" in shown


@pytest.mark.parametrize(
    ("times_us", "reached"), [((80, 80), True), ((80, 100), False), ((50, 115), False)]
)
def test_the_aim_is_a_mean_and_a_least(show, times_us, reached):
    rows = [measured(f"case{k}", "k01", time_us) for k, time_us in enumerate(times_us)]
    rows += [measured(f"case{k}", "cudnn-contiguous", 100) for k in range(len(times_us))]
    assert (" is reached: " if reached else " is not reached: ") in show(*rows)


def test_flagged_figures_are_marked(show):
    flagged = replace(measured("case1", "k01", 80), validity=("temperature_drift",))
    shown = show(flagged, measured("case1", "cudnn-contiguous", 100))
    assert "| case1 | 80.00* | 100.00 | 1.250x |" in shown
    assert "\\* flagged: temperature_drift." in shown


@given(st.dictionaries(st.text(min_size=1), st.floats(0.1, 10), min_size=1))
def test_the_verdict_agrees_with_its_figures(advantages):
    text = against_cudnn.verdict(advantages, len(advantages))
    if min(advantages.values()) >= 1.2:
        assert " is reached" in text
    if min(advantages.values()) < 0.9 or max(advantages.values()) < 1.2 - 1e-9:
        assert " is not reached" in text
