"""Interrupted searches lose nothing, and end like others when they are continued."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from kernel_specs import BUDGET, SOURCE, Searched, events_of, optimize, spec_with, state_of, write
from points import MORE
from search_folders import disk_with_room, search_killed_at

from pytest_gpuenergy.ab import rounds
from pytest_gpuenergy.energy import EnergyMeter, Reading
from pytest_gpuenergy.search import Result, SearchBench, State
from pytest_gpuenergy.search.running import confirmation

Capsys = pytest.CaptureFixture[str]

pytestmark = pytest.mark.slow


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    return write(tmp_path)


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the ids of the states that are evaluated from now on."""
    ids: list[str] = []
    real = SearchBench.evaluate

    def evaluate(bench: SearchBench, state: State, *limit: Any) -> Result:
        ids.append(state.id)
        return real(bench, state, *limit)

    monkeypatch.setattr(SearchBench, "evaluate", evaluate)
    return ids


@pytest.fixture
def whole(searched: Searched) -> Any:
    """Return the state of a search that ran without interruption."""
    return state_of(searched.out)


def test_without_the_option_a_search_is_not_continued(spec, finished, capsys):
    assert optimize(spec, finished, "--objective", "edp") == 2
    assert "already contains a search: continue it with --resume" in capsys.readouterr().err


def test_nothing_is_evaluated_again(spec, finished, whole, evaluated, monkeypatch):
    monkeypatch.setattr(confirmation, "compare", None)
    assert optimize(spec, finished, "--objective", "edp", "--resume") == 0
    assert evaluated == []
    assert state_of(finished) == whole


def test_a_larger_budget_goes_on_and_compares_the_best_of_all_again(
    spec, tmp_path, whole, evaluated
):
    out = tmp_path / "out"
    for budget in (1, BUDGET):
        words = ["--objective", "edp", "--budget-builds", str(budget), "--resume"]
        assert optimize(spec, out, *words) == 0
        assert {gain["candidates"] for gain in state_of(out)["gains"]} == {budget}
    assert state_of(out)["nodes"] == whole["nodes"]
    assert state_of(out)["incumbent"] == whole["incumbent"]
    assert len(evaluated) == len(set(evaluated)) == 1 + BUDGET


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--seed", "9"), "seed"),
        (("--objective", "time"), "objective"),
        (("--search-param", "PUCT_C=3"), "strategy"),
    ],
)
def test_another_search_is_not_continued(spec, finished, options, what, capsys):
    settings = ("--objective", "edp", "--resume", *options)
    assert optimize(spec, finished, *settings) == 2
    assert f"contains a search with another {what}" in capsys.readouterr().err


@pytest.mark.parametrize("files", [17, *(MORE(files) for files in (1, 9, 25, 29))])
def test_a_full_disk_at_any_file_loses_nothing(files, spec, tmp_path, whole, capsys):
    out = tmp_path / "out"
    with disk_with_room(files) as is_full:
        code = optimize(spec, out, "--objective", "edp")
    assert is_full()
    assert code == 1
    sentence = "(No space left on device): make room, then continue with --resume."
    assert sentence in capsys.readouterr().err
    assert optimize(spec, out, "--objective", "edp", "--resume") == 0
    assert state_of(out) == whole


@pytest.mark.parametrize("files", [9, *(MORE(files) for files in (0, 4, 13, 20, 25))])
def test_a_killed_search_ends_with_the_same_result(spec, tmp_path, whole, files):
    out = tmp_path / "out"
    search_killed_at(files, spec, out, "--gpus", "emulated:h200", "--objective", "edp")
    assert optimize(spec, out, "--objective", "edp", "--resume") == 0
    assert state_of(out) == whole
    kinds = [(one["event"], one["id"]) for one in events_of(out) if one["event"] != "began"]
    assert len(kinds) == len(set(kinds))


def test_ctrl_c_ends_it_after_the_variant(spec, tmp_path, whole, monkeypatch, capsys):
    real = SearchBench.evaluate

    def interrupted(bench: SearchBench, state: State, *limit: Any) -> Result:
        os.kill(os.getpid(), signal.SIGINT)
        return real(bench, state, *limit)

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(SearchBench, "evaluate", interrupted)
        assert optimize(spec, out, "--objective", "edp") == 130
    assert "everything evaluated is kept in" in capsys.readouterr().err
    assert len(state_of(out)["nodes"]) == 1
    assert optimize(spec, out, "--objective", "edp", "--resume") == 0
    assert state_of(out) == whole


@pytest.mark.parametrize("turn", [6, MORE(1), MORE(7)])
def test_ctrl_c_ends_a_comparison_after_the_turn(spec, finished, whole, turn, monkeypatch, capsys):
    """The search has evaluated all variants, and is then continued."""
    measured = _interrupted_in(turn, monkeypatch)
    [made] = finished.glob("kernels/_scale/variants/*/comparison.json")
    before = made.read_bytes()
    made.unlink()
    words = (spec, finished, "--objective", "edp", "--resume")
    assert optimize(*words) == 130
    assert len(measured) == turn
    assert "everything evaluated is kept in" in capsys.readouterr().err
    assert not made.exists()
    monkeypatch.undo()
    assert optimize(*words) == 0
    assert state_of(finished) == whole
    assert made.read_bytes() == before


def test_a_comparison_that_is_complete_at_ctrl_c_counts_and_no_other_kernel_is_searched(
    finished, tmp_path, whole, monkeypatch
):
    specs = tmp_path / "specs"
    specs.mkdir()
    write(specs)
    write(specs, spec_with(name="second"))
    [made] = finished.glob("kernels/_scale/variants/*/comparison.json")
    made.unlink()
    turns = 2 * whole["gains"][-1]["rounds"]
    measured = _interrupted_in(turns, monkeypatch)
    assert optimize(specs, finished, "--objective", "edp", "--resume") == 130
    assert len(measured) == turns
    assert state_of(finished) == whole
    assert not (finished / "kernels/_second/baseline").exists()


def _interrupted_in(turn: int, monkeypatch: pytest.MonkeyPatch) -> list[Reading]:
    """Press Ctrl-C during a turn of a comparison, from 1 on; return the readings of all turns."""
    found: list[Reading] = []

    class Interrupted(EnergyMeter):
        def measure(self, *args: Any, **options: Any) -> Reading:
            if len(found) == turn - 1:
                os.kill(os.getpid(), signal.SIGINT)
            found.append(super().measure(*args, **options))
            return found[-1]

    monkeypatch.setattr(rounds, "EnergyMeter", Interrupted)
    return found


def test_a_lost_gpu_refuses_no_variant(spec, tmp_path, whole, monkeypatch, capsys):
    out = tmp_path / "out"
    assert optimize(spec, out, "--objective", "edp", "--budget-builds", "0") == 0
    real = SearchBench.evaluate

    def lost(bench: SearchBench, state: State, *limit: Any) -> Result:
        patch.setenv("GPUENERGY_EMULATED_FAULTS", '{"any": "gpu_is_lost"}')
        return real(bench, state, *limit)

    with monkeypatch.context() as patch:
        patch.setattr(SearchBench, "evaluate", lost)
        assert optimize(spec, out, "--objective", "edp", "--resume") == 1
    assert "is lost" in capsys.readouterr().err.lower()
    assert optimize(spec, out, "--objective", "edp", "--resume") == 0
    assert state_of(out)["nodes"] == whole["nodes"]


def test_a_gpu_that_is_lost_by_a_kernel_ends_the_search(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("pytest_gpuenergy.energy.sensors.responds", lambda _: False)
    path = write(tmp_path, spec_with(source=SOURCE.replace("by * x", "by + x")))
    assert optimize(path, tmp_path / "out") == 1
    assert "does not respond any more" in capsys.readouterr().err
    assert not (tmp_path / "out/kernels/_scale/baseline/result.json").exists()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("search_state.json", "The state of a search"),
        ("events.jsonl", "The list of events"),
        ("baseline/result.json", "The result"),
    ],
)
def test_a_damaged_file_is_told_in_one_sentence(spec, finished, name, said, capsys):
    (finished / "kernels/_scale" / name).write_text("[]\n")
    assert optimize(spec, finished, "--objective", "edp", "--resume") == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("error:") == 1


def test_results_without_the_state_that_says_what_they_are_of_are_not_used(spec, finished, capsys):
    (finished / "kernels/_scale/search_state.json").unlink()
    assert optimize(spec, finished, "--objective", "time", "--resume") == 2
    assert "has results, but no search_state.json" in capsys.readouterr().err
