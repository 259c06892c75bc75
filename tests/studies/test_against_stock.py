"""TVM's own tuner against ours: the course of the bench, with a stand-in for TVM's own tuner."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import against_stock
import pytest
import tuner_process
from tuner_bench import TunerBench

from pytest_gpuenergy.tuning import Trial


@pytest.fixture
def bench(tmp_path: Path) -> TunerBench:
    return TunerBench(against_stock.main, tmp_path / "against_stock.json")


@pytest.fixture
def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in for a tuner hangs after two trials; then all the time that it has is over."""
    monkeypatch.setenv("FAKE_TUNER", "hang")

    def monotonic() -> float:
        hangs = any(path.read_text().count("\n") == 2 for path in tmp_path.rglob("trials.jsonl"))
        return 1e6 if hangs else 0.0

    clock = SimpleNamespace(monotonic=monotonic, sleep=time.sleep)
    monkeypatch.setattr(tuner_process, "time", clock)


def row(output: str, tuner: str) -> list[str]:
    """The cells of a tuner's row in the table."""
    (line,) = [line for line in output.splitlines() if line.startswith(f"| case7 | {tuner} |")]
    return [cell.strip() for cell in line.split("|")[1:-1]]


@pytest.mark.thorough
@pytest.mark.tvm
def test_both_tuners_are_watched_and_measured_alike(bench, capsys):
    assert bench.run("--tuners", "stock,direct", "--kernels", "1", trials=3) == 0
    stock, ours = bench.results["case7/stock"], bench.results["case7/direct"]
    assert (stock["trials"], stock["failed"]) == (3, {"compile": 1})
    assert ours["trials"] == 3
    for found in (stock, ours):
        times = [elapsed_s for elapsed_s, _ in found["curve"]]
        assert times == sorted(times)
        assert 0 < found["first_trial_s"] <= found["last_trial_s"] <= found["wall_s"]
        assert found["trials_per_min"] == pytest.approx(60 * 3 / found["last_trial_s"])
        assert found["energy_j"] >= 0
    kernels = bench.results["case7/measured"]["kernels"]
    for tuner in ("stock", "direct"):
        (measured,) = kernels[tuner]
        assert measured["outcome"] == "correct", measured["error"]
        assert measured["kernel"]["label"] == f"{tuner}-1"
        assert measured["correctness"]["normwise_error"] > 0
        assert measured["energy_mj"] > 0
    assert bench.run("--table") == 0
    ran, shown = capsys.readouterr().out.split("NVIDIA H200 (emulated)")[1:]
    assert ran == shown
    time_us = 1e3 * kernels["direct"][0]["time_ms"]
    assert float(row(shown, "direct")[9].rstrip("*")) == pytest.approx(time_us, abs=0.01)


def test_the_curve_is_the_best_so_far():
    trials = [
        (1.0, Trial(index=0, outcome="compile")),
        (2.0, Trial(index=1, outcome="timed", time_ms=0.5)),
        (3.0, Trial(index=2, outcome="timed", time_ms=0.7)),
    ]
    search = tuner_process.Search(tuple(trials), 4.0, 0, None, "", None)
    assert search.summary()["curve"] == [(1.0, None), (2.0, 0.5), (3.0, 0.5)]
    assert search.summary()["steady_trials_per_min"] == pytest.approx(60)


@pytest.mark.tvm
def test_a_tuner_that_dies_is_told_and_its_kernels_are_measured(bench, monkeypatch, capsys):
    monkeypatch.setenv("FAKE_TUNER", "die")
    assert bench.run("--tuners", "stock", "--kernels", "1") == 1
    found = bench.results["case7/stock"]
    assert (found["trials"], found["exit_code"], found["complete"]) == (2, -9, False)
    notes = row(capsys.readouterr().out, "stock")[-1]
    assert notes.startswith("failed: ended by signal 9 / Segmentation fault")
    assert bench.results["case7/measured"]["kernels"]["stock"][0]["outcome"] == "correct"

    monkeypatch.delenv("FAKE_TUNER")
    assert bench.run("--tuners", "stock", "--kernels", "1", "--resume") == 0
    assert bench.results["case7/stock"]["trials"] == 8


@pytest.mark.tvm
@pytest.mark.usefixtures("hanging")
def test_a_search_ends_at_its_limit_and_counts(bench, capsys):
    limit = ["--tuners", "stock", "--kernels", "1", "--search-limit-s", "2"]
    assert bench.run(*limit) == 0
    found = bench.results["case7/stock"]
    assert (found["trials"], found["exit_code"], found["complete"]) == (2, None, True)
    assert row(capsys.readouterr().out, "stock")[-1].startswith("ended after 2 s")


def test_a_line_is_read_when_it_is_whole(tmp_path):
    path = tmp_path / "trials.jsonl"
    watch = tuner_process.Watch(path)
    watch.look(0.5)
    first = '{"index": 0, "outcome": "timed", "time_ms": 0.5}\n'
    path.write_text(first + '{"index": 1, "outc')
    watch.look(1.0)
    assert list(watch.seen) == [0]
    path.write_text(first + '{"index": 1, "outcome": "compile"}\n')
    watch.look(2.0)
    assert watch.seen[1] == (2.0, Trial(index=1, outcome="compile"))
