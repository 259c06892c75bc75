"""What is told of a search's progress."""

from __future__ import annotations

import io

import pytest

from pytest_gpuenergy.tuning import SearchProgress, Trial

BEFORE = [
    Trial(index=0, outcome="timed", time_ms=0.5),
    Trial(index=1, outcome="compile"),
    Trial(index=2, outcome="timed", time_ms=0.4),
    Trial(index=3, outcome="correctness", time_ms=0.1),
]


def test_the_last_line_tells_all(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr("pytest_gpuenergy.tuning.loop.monotonic", lambda: now_s)
    told: list[str] = []
    with SearchProgress("case1", wanted=10, before=BEFORE, tell=told.append) as progress:
        progress.add(Trial(index=4, outcome="timed", time_ms=0.25))
        progress.add(Trial(index=5, outcome="timeout"))
        now_s = 112.0
        progress.add(Trial(index=6, outcome="timed", time_ms=0.5))
    assert told[-1] == (
        "case1: 7 of 10 trials, best 0.25 ms, failed: 1 timeout, 15 trials/min, 12 s left"
    )


def test_the_best_may_be_of_an_earlier_search() -> None:
    told: list[str] = []
    with SearchProgress("case1", wanted=5, before=BEFORE, tell=told.append) as progress:
        progress.add(Trial(index=4, outcome="timed", time_ms=0.6))
    assert told[-1].startswith("case1: 5 of 5 trials, best 0.4 ms")


def test_lines_come_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr("pytest_gpuenergy.tuning.loop.monotonic", lambda: now_s)
    told: list[str] = []
    with SearchProgress("case1", wanted=100, before=(), tell=told.append) as progress:
        for index in range(100):
            now_s = index / 10
            progress.add(Trial(index=index, outcome="timed", time_ms=1.0))
    assert len(told) == 4  # at 3, 6 and 9 s, and the last one
    assert all("\r" not in line and "\n" not in line for line in told)


def test_a_terminal_gets_a_bar_that_goes_away() -> None:
    pytest.importorskip("rich", reason="the live display needs rich")
    stream, told = io.StringIO(), list[str]()
    with SearchProgress("case1", wanted=2, before=(), tell=told.append, live=stream) as progress:
        progress.add(Trial(index=0, outcome="timed", time_ms=0.25))
    assert len(told) == 1
    assert "1 of 2 trials" in told[0]


def test_nothing_tried_is_told_plainly() -> None:
    told: list[str] = []
    with SearchProgress("case1", wanted=0, before=(), tell=told.append):
        pass
    assert told == ["case1: 0 of 0 trials, best none, failed: none, 0 trials/min, 0.00 s left"]
