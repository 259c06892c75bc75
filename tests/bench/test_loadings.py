"""What a launch's time differs by from loading to loading, of times that are known."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import loadings
import numpy as np
import pytest

MEAN_US, SETS = 10.0, 12


def rows(of_process: float, of_set: float, of_graphs: float, of_proof: float) -> list[Any]:
    """400 processes with deviations of so many us."""
    rng = np.random.default_rng(1)
    found = []
    for number in range(400):
        level = MEAN_US + rng.normal(0, of_process) + of_proof * (number % 2)
        sets = level + rng.normal(0, of_set, SETS)
        times = {loadings.FIRST: sets, loadings.ELSEWHERE: level + rng.normal(0, of_set, SETS)}
        second = (loadings.GRAPHS, loadings.MODULE)[number // 2 % 2]
        times[second] = sets + rng.normal(0, of_graphs * (1 + number // 2 % 2))
        found.append(
            {
                "kernel": "k",
                "way": loadings.SCATTERED,
                "proved": number % 2 == 1,
                "times": {
                    what: {"mean_us": float(some.mean()), "sets_us": some.tolist()}
                    for what, some in times.items()
                },
            }
        )
    return found


def test_each_cause_has_a_figure_of_its_own() -> None:
    line = loadings.table(rows(0.02, 0.12, 0.03, 0.05)).splitlines()[-1]
    shown = [float(value) for value in re.findall(r"([-+.\d]+)%", line)]
    between, by_sets, graphs, module, elsewhere, proof, _ = shown
    assert by_sets == pytest.approx(0.12 / SETS**0.5 * 10, rel=0.05)
    assert graphs == pytest.approx(0.03 / 2**0.5 * 10, rel=0.15)
    assert module == pytest.approx(2 * graphs, rel=0.2)
    assert elsewhere == pytest.approx(by_sets, rel=0.15)
    assert proof == pytest.approx(0.5, abs=0.15)
    assert between > by_sets


def test_a_single_process_is_told_as_far_as_it_goes() -> None:
    assert "| k | scattered | 1 | 10.0" in loadings.table(rows(0, 0, 0, 0)[:1])


def test_the_emulated_gpu_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert loadings.main(["--json", str(tmp_path / "loadings.json")]) == 2
    assert "take a real one" in capsys.readouterr().err
