"""The loop of a search, on made-up proposals and a device without hardware."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from tuning_fakes import FakeDevice, record_of

from pytest_gpuenergy.engine.verification import arenas_for
from pytest_gpuenergy.kernels.kernel import Kernel, Launch
from pytest_gpuenergy.support.errors import DeviceError, KernelFault
from pytest_gpuenergy.tvm import search as module
from pytest_gpuenergy.tvm.progress import Progress
from pytest_gpuenergy.tvm.proposals import Candidate
from pytest_gpuenergy.tvm.raw import RawLog
from pytest_gpuenergy.tvm.search import Bench, known, search
from pytest_gpuenergy.tvm.searcher import Scored
from pytest_gpuenergy.workloads import Conv2d

WORKLOAD = Conv2d.of("tiny", 1, 4, 4, 1, 1, 1, 1, 1, 0)
LAUNCH = Launch("k", (1, 1, 1), (1, 1, 1), ("data", "weight", "output"))


def candidate(word: str) -> Candidate:
    """A schedule known by a word, which is its kernel's text; ``bad`` has no kernel."""
    if word == "bad":
        return Candidate(record_of(word), KernelFault("compile", "It cannot be lowered."))
    return Candidate(record_of(word), Kernel(word, (LAUNCH,)))


def time_ms(kernel: Kernel) -> float:
    if kernel.source == "hang":
        raise KernelFault("timeout", "It hangs.")
    if kernel.source == "gone":
        raise DeviceError("The GPU is lost.")
    return float(len(kernel.source))


@dataclass
class FakeProposals:
    """Gives batches of words; writes down in which order it was asked and told."""

    batches: list[Sequence[str]]
    events: list[str] = field(default_factory=list)
    learned: list[Scored] = field(default_factory=list)
    requested: list[Sequence[str]] = field(default_factory=list)
    processes = 1

    def stored_workload(self, stop: Event) -> str | None:
        return None if stop.is_set() else '["hash", "workload"]'

    def request(self) -> None:
        words = self.batches.pop(0) if self.batches else []
        self.events.append(f"request {' '.join(words)}")
        self.requested.append(words)

    def take(self, stop: Event) -> list[Candidate]:
        return [] if stop.is_set() else [candidate(word) for word in self.requested.pop(0)]

    def learn(self, trials: Sequence[Scored]) -> None:
        self.events.append(f"learn {len(trials)}")
        self.learned += trials


@dataclass
class Search:
    folder: Path
    raw: RawLog
    device: FakeDevice
    proposals: FakeProposals
    stop: Event

    @property
    def outcomes(self) -> list[str]:
        return [trial.outcome for trial in self.raw.trials]


Start = Callable[..., Search]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """start(batches, trials, objective="time", powers={...}) -> Search"""
    with ExitStack() as stack:
        raw: RawLog | None = None

        def go(
            *batches: str,
            trials: int = 99,
            objective: Any = "time",
            power_w: Callable[[str], float | None] = lambda _: 300.0,
            stop_after: int | None = None,
            stopped: bool = False,
        ) -> Search:
            nonlocal raw
            if raw is not None:
                raw.__exit__(None, None, None)
            stop = Event()
            if stopped:
                stop.set()

            def timed(kernel: Kernel) -> float:
                if stop_after is not None and len(device.timed) > stop_after:
                    stop.set()
                return time_ms(kernel)

            device = FakeDevice(timed)
            raw = stack.enter_context(RawLog(tmp_path / "raw", WORKLOAD, device))
            arenas = stack.enter_context(arenas_for(WORKLOAD, seed=0))
            monkeypatch.setattr(module, "measure_power_w", lambda _, k, *__: power_w(k.source))
            proposals = FakeProposals([batch.split() for batch in batches])
            progress = Progress("tiny", trials, raw.trials.copy(), lambda _: None)
            bench = Bench(device, WORKLOAD, arenas, objective, raw, progress, stop)
            search(proposals, bench, trials)  # type: ignore[arg-type]
            return Search(tmp_path / "raw", raw, device, proposals, stop)

        yield go


def test_each_candidate_is_timed_in_the_order_it_was_proposed(start: Start) -> None:
    found = start("xxx x xx", trials=3)
    assert [trial.time_ms for trial in found.raw.trials] == pytest.approx([3.0, 1.0, 2.0])


def test_a_kernel_that_fails_is_a_failed_trial_with_its_reason(start: Start) -> None:
    found = start("x hang bad xx", trials=4)
    assert found.outcomes == ["timed", "timeout", "compile", "timed"]
    assert [t.message for t in found.raw.trials if not t.good] == [
        "It hangs.",
        "It cannot be lowered.",
    ]


def test_a_lost_gpu_is_not_taken_for_a_bad_kernel(start: Start) -> None:
    with pytest.raises(DeviceError, match=r"The GPU is lost\."):
        start("x gone", trials=2)


def test_the_next_batch_is_requested_before_this_one_is_timed(start: Start) -> None:
    found = start("a b", "c d", "e f", trials=6)
    assert found.proposals.events == [
        *("request a b", "request c d", "learn 2"),
        *("request e f", "learn 2", "learn 2"),
    ]


def test_no_more_is_tried_than_asked_for(start: Start) -> None:
    found = start("a b c", "d e f", "g h i", trials=4)
    assert found.device.timed == [candidate(word).kernel.digest for word in "abcd"]
    assert found.proposals.batches == [["g", "h", "i"]]


def test_a_schedule_is_not_tried_twice(start: Start) -> None:
    found = start("a b a", "b c", trials=99)
    assert found.device.timed == [candidate(word).kernel.digest for word in "abc"]


def test_a_search_that_finds_no_more_ends(start: Start) -> None:
    assert len(start("a b", trials=50).raw.trials) == 2


def test_the_search_is_told_seconds_and_which_failed(start: Start) -> None:
    found = start("xx hang", trials=2)
    assert [trial.score_s for trial in found.proposals.learned] == [pytest.approx(2e-3), None]


def test_a_stopped_search_keeps_what_it_has_tried(start: Start) -> None:
    found = start("a b c d", trials=4, stop_after=1)
    assert len(found.raw.trials) == 2
    assert len(found.proposals.learned) == 2


def test_a_search_that_is_stopped_before_its_first_trial_can_go_on(start: Start) -> None:
    assert start("a b", trials=2, stopped=True).raw.trials == []
    assert len(start("a b", trials=2).raw.trials) == 2


def test_a_search_goes_on_where_another_ended(start: Start) -> None:
    start("a b hang", trials=3)
    found = start("b hang c", "d", trials=5)
    assert found.device.timed == [candidate(word).kernel.digest for word in "cd"]
    assert [trial.index for trial in found.raw.trials] == [0, 1, 2, 3, 4]


def test_what_is_known_serves_a_search_that_begins_again(start: Start) -> None:
    found = start("xx hang x", trials=3)
    scores = [trial.score_s for trial in known("time", found.raw)]
    assert scores == [pytest.approx(2e-3), None, pytest.approx(1e-3)]


def test_the_power_of_promising_trials_is_kept(start: Start) -> None:
    found = start("xxxx xxx xx x", trials=4, objective="edp", power_w=lambda _: 250.0)
    assert [trial.power_w for trial in found.raw.trials] == [None, None, None, 250.0]
    assert found.raw.trials[3].energy_mj == pytest.approx(250.0)


def test_the_search_is_told_the_cost_rather_than_the_time(start: Start) -> None:
    powers = {"a": 100.0, "b": 400.0}
    found = start("a xxxx", "b xxxxx", trials=4, objective="energy", power_w=powers.get)
    worth = {scored.record: scored.score_s for scored in known("energy", found.raw)}
    first, second = (worth[found.raw.records[index]] for index in (0, 2))
    assert first is not None
    assert second is not None
    assert second / first == pytest.approx(4.0)


def test_a_kernel_that_fails_under_load_is_a_failed_trial(start: Start) -> None:
    def fail(_: str) -> float:
        raise KernelFault("runtime", "It crashed.")

    (trial,) = start("x", trials=1, objective="edp", power_w=fail).raw.trials
    assert (trial.outcome, trial.message) == ("runtime", "It crashed.")
    assert (trial.time_ms, trial.power_w) == (None, None)
