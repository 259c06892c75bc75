"""The tables and plots of matrix products say what the report says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import product_tables
import pytest
from msgspec.structs import replace

from pytest_gpuenergy.record import Interval, KernelInfo, Measurement, RunInfo, Window, WorkloadInfo
from pytest_gpuenergy.report import Report, write_json

Measured = Callable[..., Measurement]
Table = Callable[..., str]


@pytest.fixture
def contender(measured: Measured) -> Measured:
    """A measurement in a product."""

    def make(name: str, time_ms: float, mode: str = "float32", m: int = 64, **more: Any) -> Any:
        parameters = {"kind": "gemm", "M": m, "N": 64, "K": 64, "layout": "nn", "mode": mode}
        words = "_".join(map(str, [m, mode, *more.values()]))
        workload = WorkloadInfo(f"gemm_{words}", {**parameters, **more}, 1_000_000_000, 1)
        one = measured(None, 3, time_ms=time_ms, workload=workload.name)
        return replace(one, workload=workload, kernel=KernelInfo(name, "0" * 64, "template"))

    return make


@pytest.fixture
def printed(
    run_info: Callable[..., RunInfo], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Table:
    def run(*measurements: Measurement, options: tuple[str, ...] = (), code: int = 0) -> str:
        distinct = [
            replace(one, node_id=f"{one.node_id}-{number}")
            for number, one in enumerate(measurements)
        ]
        path = tmp_path / "report.json"
        write_json(Report(run_info(), tuple(distinct)), path)
        assert product_tables.main([str(path), *options]) == code
        out, err = capsys.readouterr()
        return err if code else out

    return run


def test_a_row_is_a_product_and_a_column_a_contender(printed, contender):
    text = printed(
        contender("cublas", 0.5), contender("template", 0.25), contender("cublas", 1.0, m=128)
    )
    assert "| M x N x K | cublas: TFLOP/s, mJ | template: TFLOP/s, mJ |" in text
    assert "| 64 | 2.00, " in text
    assert "**4.00**" in text
    assert "| 128 x 64 x 64 | **1.00**, " in text


def test_products_of_other_leading_dimensions_are_others(printed, contender):
    text = printed(contender("a", 0.5), contender("a", 0.25, lda=80))
    assert "| 64 | **2.00**, " in text
    assert "| 64, lda 80 | **4.00**, " in text


def test_all_figures_are_those_of_the_report(printed, contender):
    one = replace(contender("a", 0.5), energy_mj=100.0, edp_mj_ms=50.0, gflops_per_w=12.5)
    text = printed(one, options=("--all-figures",))
    assert "| a: TFLOP/s, mJ, mJ·ms, GFLOP/s/W |" in text
    assert "| 64 | **2.00**, 100, 50.0, 12.5 |" in text


def test_what_is_as_exact_shares_a_table(printed, contender):
    text = printed(
        contender("cublas", 0.5), contender("template", 0.2, "3xtf32"), contender("a", 1, "tf32")
    )
    assert text.count("| M x N x K |") == 2
    assert "| cublas: TFLOP/s, mJ | template 3xtf32: TFLOP/s, mJ |" in text


def test_speed_and_energy_are_compared_with_cublas(printed, contender):
    text = printed(
        *(contender("cublas", 1.0, m=m) for m in (1, 2, 3)),
        contender("template", 0.5, m=1),
        contender("template", 2.0, m=2),
        contender("template", 4.0, m=4),
    )
    assert "template has 1.000 times the speed of cublas" in text
    assert "over 2 products" in text


def test_both_layouts_have_a_mean_of_their_own_and_a_common_one(printed, contender):
    text = printed(
        contender("cublas", 1.0),
        contender("template", 0.5),
        contender("cublas", 1.0, layout="nt"),
        contender("template", 0.125, layout="nt"),
    )
    assert "template has 2.000 times the speed" in text
    assert "template has 8.000 times the speed" in text
    common = text.partition("float32, all layouts:")[2]
    assert "template has 4.000 times the speed" in common
    assert "over 2 products" in common


def test_all_that_may_be_the_fastest_are_bold_and_the_plot_has_intervals(
    printed, contender, tmp_path
):
    pytest.importorskip("vl_convert", reason="plots need vl-convert-python")

    def noisy(name: str, time_ms: float) -> Measurement:
        ends = Interval(time_ms * 0.99, time_ms * 1.01)
        trials = (Window(1.0, 200.0, 2000, 1.0),) * 7
        return replace(contender(name, time_ms), time_ms_ci95=ends, trials=trials)

    rows = (noisy("template", 0.5), noisy("triton", 0.501), noisy("cublas", 0.6))
    text = printed(*rows, options=("--plot", str(tmp_path / "p.svg")))
    (line,) = (line for line in text.splitlines() if line.startswith("| 64 |"))
    assert ["**" in cell for cell in line.split("|")[2:5]] == [True, True, False]
    assert "TFLOP/s from" in (tmp_path / "p.svg").read_text()
