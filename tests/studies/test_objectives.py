"""Tuning for time, energy and EDP beside each other, with a stand-in for the tuner and without."""

from __future__ import annotations

import json
from pathlib import Path

import objectives
import pytest
from tuner_bench import TunerBench

pytestmark = pytest.mark.tvm


@pytest.fixture
def bench(tmp_path: Path) -> TunerBench:
    return TunerBench(objectives.main, tmp_path / "objectives.json")


def rows(output: str) -> dict[tuple[str, str], list[str]]:
    """The cells of the table, by case and objective."""
    lines = [line for line in output.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]
    return {(line[0], line[1]): line for line in cells}


@pytest.mark.thorough
def test_the_real_tuner_is_told_its_objective(bench):
    assert (
        bench.run("--objectives", "edp", "--space", "direct", tuner=objectives.OURS, trials=2) == 0
    )
    found = bench.results["case7/edp"]
    assert found["trials"] == found["outcome"]["tried"] == 2
    assert found["energy_j"] > 0
    (record,) = (bench.path.with_suffix(".work") / "case7" / "edp").glob("case7_*.json")
    assert json.loads(record.read_text())["objective"] == "edp"
    (measured,) = bench.results["case7/measured"]["kernels"]["edp"]
    assert measured["outcome"] == "correct"


def test_the_best_of_each_objective_are_compared(bench, capsys):
    assert bench.run() == 0
    kernels = bench.results["case7/measured"]["kernels"]
    assert set(kernels) == {"time", "energy", "edp"}
    digests = {name: found[0]["kernel"]["digest"] for name, found in kernels.items()}
    assert digests["energy"] == digests["edp"] != digests["time"]
    shown = rows(capsys.readouterr().out)
    assert shown["case7", "time"][8:11] == ["1.000", "1.000", "1.000"]
    saved = kernels["edp"][0]["edp_mj_ms"] / kernels["time"][0]["edp_mj_ms"]
    assert float(shown["case7", "edp"][10]) == pytest.approx(saved, abs=1e-3)
    assert float(shown["geometric mean", "edp"][10]) == pytest.approx(saved, abs=1e-3)
    assert shown["geometric mean", "edp"][-1] == "of 1 cases"


def test_a_search_that_fails_leaves_the_others(bench, monkeypatch, capsys):
    monkeypatch.setenv("FAKE_TUNER", "die:energy")
    assert bench.run() == 1
    assert bench.results["case7/energy"]["complete"] is False
    assert bench.results["case7/measured"]["kernels"]["energy"] == []
    shown = rows(capsys.readouterr().out)
    assert shown["case7", "energy"][-1].startswith("failed: ended by signal 9")
    assert shown["case7", "edp"][8]

    monkeypatch.delenv("FAKE_TUNER")
    before = bench.results["case7/time"]
    assert bench.run("--resume") == 0
    assert bench.results["case7/time"] == before
    assert len(bench.results["case7/measured"]["kernels"]["energy"]) == 1
