"""The report as Markdown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_gpuenergy.report import markdown

Make = Callable[..., Any]


def test_markdown_marks_the_best_and_names_failures(
    report: Make, measured: Make, failed: Make
) -> None:
    slow = measured(2, time_ms=1.0, energy_mj=200.0, validity=("host_gaps",))
    text = markdown(report(measured(1), slow, failed(3)))
    assert "# NVIDIA H200 (emulated), run 20260102T030405-abcdef" in text
    assert "| **k01** | 500.00 | 200.0 | 100 | 50 | 10.00 |  |" in text
    assert "| k02 | 1000.00 | 200.0 | 200 | 200 | 5.00 | host_gaps |" in text
    assert "correctness: 1 of 4 elements of output is wrong." in text


def test_markdown_of_a_real_gpu_does_not_say_emulated(report: Make, measured: Make) -> None:
    assert "emulated" not in markdown(report(measured(1), emulated=False))


def test_every_row_of_a_markdown_table_has_as_many_cells(
    report: Make, measured: Make, failed: Make
) -> None:
    text = markdown(report(measured(1), failed(2, error="a | b")))
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {row.count("|") for row in rows} == {7, 8}  # the best, the kernels


def test_the_best_of_each_workload_comes_first(report: Make, measured: Make) -> None:
    frugal = measured(2, 1, time_ms=1.0, energy_mj=80.0)
    lines = markdown(report(measured(1, 5), frugal)).splitlines()
    row = next(line for line in lines if line.startswith("| case1 |"))
    assert row == (
        "| case1 | 500 µs (k01 at 700W) | 80.0 mJ (k02 at 200W) | 50.0 mJ·ms (k01 at 700W) "
        "| 700W | 2 |"
    )


def test_a_run_without_figures_says_so(report: Make, failed: Make) -> None:
    assert "Nothing was measured." in markdown(report(failed()))


def test_names_and_errors_cannot_become_markup(report: Make, measured: Make, failed: Make) -> None:
    hostile = "</summary><img src=x onerror=alert(1)>\n\n# [x](javascript:1) | `a` **b**"
    text = markdown(report(measured(1, workload=hostile), failed(2, error=hostile)))
    assert "<img" not in text
    assert "](javascript" not in text
    assert "\n# [" not in text
    assert text.count("</summary>") == text.count("<details>") == 2
