"""The loop of a search, over a space of words and on a device without hardware."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from tuning_fakes import (
    SLOWDOWN,
    WORDS,
    FakeDevice,
    WordProposer,
    sustained_at,
    time_ms,
    word_kernel,
)

from pytest_gpuenergy.engine import Rig, seeded_arenas
from pytest_gpuenergy.kernels import Kernel
from pytest_gpuenergy.record import Metric
from pytest_gpuenergy.support import DeviceError, KernelFault
from pytest_gpuenergy.tuning import RawLog, SearchLoop, SearchProgress, Trial, feedback
from pytest_gpuenergy.workloads import Conv2d

WORKLOAD = Conv2d.of("tiny", 1, 4, 4, 1, 1, 1, 1, 1, 0)


@dataclass
class Search:
    log: RawLog
    device: FakeDevice
    proposer: WordProposer

    @property
    def outcomes(self) -> list[str]:
        return [trial.outcome for trial in self.log.trials]


Start = Callable[..., Search]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """start(batch, batch, ..., trials=...): a search in one folder; another one goes on with it."""
    with ExitStack() as stack:
        log: RawLog | None = None

        def go(
            *batches: str,
            trials: int = 99,
            objective: Metric = Metric.TIME,
            power_w: Callable[[str], float | None] = lambda _: 300.0,
            stop_after: int | None = None,
        ) -> Search:
            nonlocal log
            if log is not None:
                log.__exit__(None, None, None)
            stop = Event()
            if stop_after == 0:
                stop.set()

            def timed(kernel: Kernel) -> float:
                if len(device.timed) == stop_after:
                    stop.set()
                return time_ms(kernel)

            device = FakeDevice(timed)
            log = stack.enter_context(RawLog(tmp_path / "raw", WORKLOAD, device, WORDS))
            arenas = stack.enter_context(seeded_arenas(WORKLOAD, seed=0))
            module = sys.modules[Rig.__module__]
            monkeypatch.setattr(module, "measure_sustained", sustained_at(time_ms, power_w))
            proposer = WordProposer([batch.split() for batch in batches], word_kernel)
            progress = SearchProgress("tiny", trials, log.trials.copy(), lambda _: None)
            rig = Rig(device, arenas, objective)
            SearchLoop(WORKLOAD, rig, WORDS, log, progress, stop).run(proposer, trials)
            return Search(log, device, proposer)

        yield go


def timed_words(search: Search) -> list[str]:
    words = {word_kernel(word).digest: word for word in "abcdefghi"}
    return [words[digest] for digest in search.device.timed]


def test_each_candidate_becomes_a_trial_in_the_order_it_was_proposed(start):
    found = start("xxx x xx", trials=3)
    assert [trial.time_ms for trial in found.log.trials] == pytest.approx([3.0, 1.0, 2.0])
    digests = [word_kernel(word).digest for word in ("xxx", "x", "xx")]
    assert [trial.digest for trial in found.log.trials] == digests


def test_a_kernel_that_fails_is_a_failed_trial_with_its_reason(start):
    found = start("x hang bad xx", trials=4)
    assert found.outcomes == ["timed", "timeout", "compile", "timed"]
    messages = [trial.message for trial in found.log.trials if not trial.good]
    assert messages == ["It hangs.", "It cannot be lowered."]


def test_a_lost_gpu_ends_the_search_and_leaves_what_was_tried(start):
    with pytest.raises(DeviceError, match=r"The GPU is lost\."):
        start("x gone", trials=2)
    assert start(trials=1).outcomes == ["timed"]


def test_a_batch_is_learned_before_the_next_one_is_taken(start):
    found = start("a b", "c d", trials=4)
    assert found.proposer.events == ["take a b", "learn 2", "take c d", "learn 2"]


def test_no_more_is_tried_than_asked_for(start):
    found = start("a b c", "d e f", "g h i", trials=4)
    assert timed_words(found) == ["a", "b", "c", "d"]
    assert found.proposer.batches == [["g", "h", "i"]]


def test_what_was_proposed_before_is_not_tried_again(start):
    assert timed_words(start("a b a", "b c", trials=99)) == ["a", "b", "c"]


def test_a_search_that_finds_no_more_ends(start):
    assert len(start("a b", trials=50).log.trials) == 2


def test_the_proposer_is_told_seconds_and_which_failed(start):
    found = start("xx hang", trials=2)
    assert [one.cost_s for one in found.proposer.learned] == [pytest.approx(2e-3), None]


def test_a_stopped_search_keeps_what_it_has_tried(start):
    found = start("a b c d", trials=4, stop_after=2)
    assert len(found.log.trials) == 2
    assert len(found.proposer.learned) == 2


def test_a_search_that_is_stopped_before_its_first_trial_can_go_on(start):
    assert start("a b", trials=2, stop_after=0).log.trials == []
    assert len(start("a b", trials=2).log.trials) == 2


def test_a_search_goes_on_where_another_ended(start):
    start("a b hang", trials=3)
    found = start("b hang c", "d", trials=5)
    assert timed_words(found) == ["c", "d"]
    assert [trial.index for trial in found.log.trials] == [0, 1, 2, 3, 4]


def test_the_power_of_promising_trials_is_kept(start):
    found = start("xxxx xxx xx x", trials=4, objective=Metric.EDP, power_w=lambda _: 250.0)
    assert [trial.power_w for trial in found.log.trials] == [None, None, None, 250.0]
    assert found.log.trials[3].energy_mj == pytest.approx(SLOWDOWN * 250.0)
    assert found.log.trials[3].digest == word_kernel("x").digest


def test_the_proposer_is_told_the_cost_rather_than_the_time(start):
    powers: dict[Any, float] = {"a": 100.0, "b": 400.0}
    found = start("a xxxx", "b xxxxx", trials=4, objective=Metric.ENERGY, power_w=powers.get)
    trials = found.log.trials
    costs = [one.cost_s for one in feedback(Metric.ENERGY, found.log.recipes, trials, trials)]
    assert costs[0] is not None
    assert costs[2] is not None
    assert costs[2] / costs[0] == pytest.approx(4.0)


def test_a_kernel_that_fails_under_load_is_a_failed_trial(start):
    def fail(_: str) -> float:
        raise KernelFault("runtime", "It crashed.")

    (trial,) = start("x", trials=1, objective=Metric.EDP, power_w=fail).log.trials
    assert (trial.outcome, trial.message) == ("runtime", "It crashed.")
    assert (trial.time_ms, trial.power_w) == (None, None)


BEFORE = [
    Trial(index=0, outcome="timed", time_ms=0.5),
    Trial(index=1, outcome="compile"),
    Trial(index=2, outcome="timed", time_ms=0.4),
    Trial(index=3, outcome="correctness", time_ms=0.1),
]


def test_the_last_line_tells_all(monkeypatch):
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


def test_the_best_may_be_of_an_earlier_search():
    told: list[str] = []
    with SearchProgress("case1", wanted=5, before=BEFORE, tell=told.append) as progress:
        progress.add(Trial(index=4, outcome="timed", time_ms=0.6))
    assert told[-1].startswith("case1: 5 of 5 trials, best 0.4 ms")


def test_lines_come_every_few_seconds(monkeypatch):
    now_s = 0.0
    monkeypatch.setattr("pytest_gpuenergy.tuning.loop.monotonic", lambda: now_s)
    told: list[str] = []
    with SearchProgress("case1", wanted=100, before=(), tell=told.append) as progress:
        for index in range(100):
            now_s = index / 10
            progress.add(Trial(index=index, outcome="timed", time_ms=1.0))
    assert len(told) == 4  # at 3, 6 and 9 s, and the last one
    assert all("\r" not in line and "\n" not in line for line in told)


def test_a_terminal_gets_a_bar_that_goes_away():
    pytest.importorskip("rich", reason="the live display needs rich")
    stream, told = io.StringIO(), list[str]()
    with SearchProgress("case1", wanted=2, before=(), tell=told.append, live=stream) as progress:
        progress.add(Trial(index=0, outcome="timed", time_ms=0.25))
    assert len(told) == 1
    assert "1 of 2 trials" in told[0]


def test_nothing_tried_is_told_plainly():
    told: list[str] = []
    with SearchProgress("case1", wanted=0, before=(), tell=told.append):
        pass
    assert told == ["case1: 0 of 0 trials, best none, failed: none, 0 trials/min"]
