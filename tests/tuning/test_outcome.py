"""What a tuning writes besides its records."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_gpuenergy.tuning import TuneResult, keep_outcome

RESULT = TuneResult(
    workload="case5",
    path=Path("case5.json"),
    started="2026-11-21T00:00:00+00:00",
    tried=8,
    valid=7,
    kept=2,
    best_ms=0.013,
    best_gflops=17000.0,
    gflops=(17000.4, 16000.0),
    rejected=(),
    search_s=1.0,
    elapsed_s=2.0,
    energy_j=None,
    gpu="NVIDIA H200",
)
EMULATED = replace(RESULT, gpu="NVIDIA H200 (emulated)", emulated=True)


def rows(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "tuning.csv").read_text().splitlines()))


def rates(folder: Path) -> list[str]:
    return (folder / "performance" / "case5.json").read_text().splitlines()


def test_rates_of_a_real_gpu_are_integers_only(tmp_path: Path) -> None:
    keep_outcome(tmp_path, RESULT)
    assert rates(tmp_path) == ["17000", "16000"]
    assert [(row["gpu"], row["emulated"]) for row in rows(tmp_path)] == [("NVIDIA H200", "False")]


def test_rates_of_an_emulated_gpu_say_so(tmp_path: Path) -> None:
    keep_outcome(tmp_path, EMULATED)
    comment, *figures = rates(tmp_path)
    assert comment == "# NVIDIA H200 (emulated): recorded or modelled figures"
    assert figures == ["17000", "16000"]
    (row,) = rows(tmp_path)
    assert (row["gpu"], row["emulated"]) == ("NVIDIA H200 (emulated)", "True")


@pytest.mark.parametrize("line", ["case4,case4.json,x,1,1,1,0.1,2.0,1.0,2.0,3.0", ""])
def test_a_table_of_an_older_release_gets_the_new_columns(tmp_path: Path, line: str) -> None:
    header = (
        "workload,path,started,tried,valid,kept,best_ms,best_gflops,search_s,elapsed_s,energy_j"
    )
    (tmp_path / "tuning.csv").write_text("\n".join([header, *([line] if line else []), ""]))
    keep_outcome(tmp_path, EMULATED)
    keep_outcome(tmp_path, RESULT)
    found = rows(tmp_path)
    assert [row["emulated"] for row in found] == [*([""] if line else []), "True", "False"]
    assert not line or found[0]["energy_j"] == "3.0"
