"""`gpuenergy report` names all that may be the best, in every view."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from pytest_gpuenergy.cli import main

ROOT = Path(__file__).parent.parent.parent
REPORT = ROOT / "bench/results/nvidia-h200-2026-11-22/report.json"


def view(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main(["report", str(REPORT), *options]) == 0
    return capsys.readouterr().out


def test_the_summary_names_the_kernels_within_noise(capsys: pytest.CaptureFixture[str]) -> None:
    text = view(capsys)
    assert "49.2 mJ ±0.72 % k03, k01 within noise at current" in text
    assert "5.61 mJ ±0.72 % k05 at current" in text  # certainly the least


def test_markdown_names_them_and_gives_every_figure_its_interval(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = view(capsys, "--md", "-")
    assert "49.2 mJ ±0.72 % (k03, k01 within noise at current)" in text
    rows = [line for line in text.splitlines() if line.startswith(("| k0", "| k1", "| k2", "| *"))]
    assert len(rows) == 175
    assert all(row.count("±") == 3 for row in rows)


def test_json_lists_them_and_can_be_read_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = view(capsys, "--json", "-")
    case3 = next(one for one in json.loads(text)["best"] if one["workload"] == "case3")
    assert case3["energy"]["kernels"] == ["k03", "k01"]
    assert case3["time"]["kernels"] == ["k01"]
    assert set(case3["front"]) < set(case3["near_front"])
    again = tmp_path / "again.json"
    again.write_text(text, encoding="utf-8")
    assert main(["report", str(again), "--json", "-"]) == 0
    assert capsys.readouterr().out == text


def test_the_tidy_table_has_the_standing_of_each_row(capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(csv.DictReader(io.StringIO(view(capsys, "--tidy", "-"))))
    case3 = {row["kernel_label"]: row for row in rows if row["workload_name"] == "case3"}
    assert case3["k01"]["best_of"] == "time energy edp"
    assert case3["k03"]["best_of"] == "energy edp"
    assert case3["k01"]["pareto"] == "front"
    assert case3["k20"]["pareto"] == case3["k20"]["best_of"] == ""
    assert sum(row["pareto"] == "within noise" for row in case3.values()) == 1
