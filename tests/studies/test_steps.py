"""Benches that are done step by step: what is kept, continued, and stopped in time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import steps

from pytest_gpuenergy.support import InputError, KernelFault

Action = Callable[[], dict[str, Any]]


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Bench:
    """Steps ``a``, ``b`` and ``c``, which give what they are told to and count their calls."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.called: list[str] = []
        self.clock = Clock()
        self.actions: dict[str, Action] = {}

    def file(self, *, resume: bool = False, **settings: Any) -> steps.ResultFile:
        return steps.ResultFile(self.path, "test", settings, {"gpu": "x"}, resume=resume)

    def run(self, file: steps.ResultFile, budget_s: float | None = None) -> bool:
        def call(key: str) -> dict[str, Any]:
            self.called.append(key)
            self.clock.now_s += 10
            return self.actions.get(key, lambda: {"value": len(self.called)})()

        every = [
            steps.Step("a", lambda: call("a"), 15, spoils="c"),
            steps.Step("b", lambda: call("b"), 15, spoils="c"),
            steps.Step("c", lambda: call("c"), 5),
        ]
        return steps.do_steps(every, file, steps.Budget(budget_s, self.clock))

    @property
    def on_disk(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.path.read_text())
        return content


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "results" / "test.json")


def broken() -> dict[str, Any]:
    raise KernelFault("timeout", "It did not finish.")


def test_every_step_is_done_once_and_kept(bench):
    assert bench.run(bench.file())
    assert bench.called == ["a", "b", "c"]
    assert bench.on_disk["results"]["b"] == {"complete": True, "value": 2}
    assert bench.on_disk["about"] == {"gpu": "x"}


def test_what_is_done_is_not_done_again(bench):
    bench.run(bench.file())
    assert bench.run(bench.file(resume=True))
    assert bench.called == ["a", "b", "c"]


def test_a_step_that_fails_is_told_and_the_next_one_begun(bench, capsys):
    bench.actions["a"] = broken
    assert not bench.run(bench.file())
    assert bench.called == ["a", "b", "c"]
    assert bench.on_disk["results"]["a"] == {"complete": False, "error": "It did not finish."}
    assert "a: failed: It did not finish." in capsys.readouterr().err


def test_what_failed_is_repeated_with_what_follows_from_it(bench):
    bench.actions["b"] = broken
    bench.run(bench.file())
    bench.actions.clear()
    assert bench.run(bench.file(resume=True))
    assert bench.called == ["a", "b", "c", "b", "c"]


def test_a_step_that_was_cut_short_is_kept_and_repeated(bench):
    bench.actions["a"] = lambda: {"complete": False, "trials": 7}
    assert not bench.run(bench.file())
    assert bench.on_disk["results"]["a"] == {"complete": False, "trials": 7}
    bench.actions.clear()
    assert bench.run(bench.file(resume=True))
    assert bench.called == ["a", "b", "c", "a", "c"]


def test_nothing_is_begun_that_the_time_is_too_short_for(bench, capsys):
    assert not bench.run(bench.file(), budget_s=22)
    assert bench.called == ["a"]
    assert list(bench.on_disk["results"]) == ["a"]
    assert "b: the time is up; continue with --resume" in capsys.readouterr().err
    assert bench.run(bench.file(resume=True), budget_s=30)
    assert bench.called == ["a", "b", "c"]


def test_a_file_is_not_overwritten(bench):
    bench.run(bench.file())
    with pytest.raises(InputError, match="already exists: continue it with --resume"):
        bench.file()


def test_a_file_with_other_settings_is_not_continued(bench):
    bench.run(bench.file(trials=5))
    with pytest.raises(InputError, match="was made with trials 5 instead of 6"):
        bench.file(resume=True, trials=6)
