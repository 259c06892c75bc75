"""What the first trials of a search find, from the raw results of `gpuenergy tune`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import first_trials
import pytest

from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.tuners import TEMPLATE_FORM, rank_kernels
from pytest_gpuenergy.tuning import card_resources, recipe_of
from pytest_gpuenergy.workloads import Gemm, to_parameters


def write_search(folder: Path, name: str, times_ms: Sequence[float | None]) -> None:
    raw = folder / name / "raw-template"
    raw.mkdir(parents=True)
    (raw / "search.json").write_text(json.dumps({"workload": {"name": name}}))
    lines = [
        {"outcome": "timed", "time_ms": time_ms, "index": index}
        if time_ms
        else {"outcome": "compile", "index": index}
        for index, time_ms in enumerate(times_ms)
    ]
    (raw / "trials.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_first_trials_are_compared_with_all(tmp_path, capsys):
    write_search(tmp_path, "a", [4.0, None, 2.5, 3.0, 2.0])
    write_search(tmp_path, "b", [1.0, 1.5])
    assert first_trials.main([str(tmp_path), "--first", "3"]) == 0
    printed = capsys.readouterr().out
    assert "| a | 5 | 2 | 5 | 80.0% |" in printed
    assert "| b | 2 | 1 | 1 | 100.0% |" in printed
    assert "geometric mean: 89.4%, least: 80.0%" in printed


def test_first_trials_that_all_fail_find_nothing(tmp_path, capsys):
    write_search(tmp_path, "a", [None, None, 2.0])
    assert first_trials.main([str(tmp_path), "--first", "2"]) == 0
    assert "| a | 3 | 2 | 3 | 0.0% |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("stored", "first", "share"),
    [
        (slice(None), 4, "100.0%"),
        (slice(-1, None), 4, "0.0%"),
        (slice(-1, None), 5000, "100.0%"),  # more than there are kernels
    ],
)
def test_a_search_made_again_takes_its_times_from_the_stored_trials(
    tmp_path, capsys, stored, first, share
):
    product = Gemm("g", 8, 8, 8, mode="tf32")
    with open_device("emulated:h100") as device:
        chosen = rank_kernels(product, card_resources(device))[stored]
    write_search(tmp_path, "g", [1.0] * len(chosen))
    raw = tmp_path / "g" / "raw-template"
    (raw / "search.json").write_text(json.dumps({"workload": to_parameters(product)}))
    recipes = [TEMPLATE_FORM.with_time(recipe_of(one), 1.0) for one in chosen]
    (raw / TEMPLATE_FORM.file_name).write_text("".join(recipe + "\n" for recipe in recipes))
    options = ["--first", str(first), "--again", "emulated:h100"]
    assert first_trials.main([str(tmp_path), *options]) == 0
    assert f"least: {share}" in capsys.readouterr().out
