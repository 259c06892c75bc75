"""The search's own process, with TVM: what it proposes, learns and survives."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from pytest_gpuenergy.kernels.kernel import Kernel
from pytest_gpuenergy.support.errors import InputError
from pytest_gpuenergy.tvm.lowering import KernelStore
from pytest_gpuenergy.tvm.proposals import Candidate, Proposals
from pytest_gpuenergy.tvm.searcher import Scored
from pytest_gpuenergy.tvm.settings import SearchSettings
from pytest_gpuenergy.workloads import Conv2d

WORKLOAD = Conv2d.of("small", 1, 7, 9, 8, 6, 3, 3, 1, 1)
RANDOM = SearchSettings(8, 3, 1, "replay-trace", "all", batch=4)
EVOLVING = SearchSettings(8, 3, 1, "evolutionary", "all", batch=4, population=8, generations=1)

Start = Callable[..., Proposals]


@pytest.fixture
def start(lowering: KernelStore) -> Iterator[Start]:
    with ExitStack() as stack:

        def go(settings: SearchSettings, known: Sequence[Scored] = ()) -> Proposals:
            proposals = Proposals(
                WORKLOAD, "sm_90", settings, lowering, prepared.append, lambda: known
            )
            return stack.enter_context(proposals)

        prepared: list[Kernel] = []
        yield go


def take(proposals: Proposals) -> list[Candidate]:
    proposals.request()
    return proposals.take()


def texts(candidates: Sequence[Candidate]) -> list[str]:
    return [candidate.record for candidate in candidates]


def pid_of(proposals: Proposals) -> int:
    worker: Any = proposals._searches[0]._worker
    assert worker.pid is not None
    return int(worker.pid)


@pytest.mark.tvm
def test_a_batch_is_lowered(start: Start) -> None:
    batch = take(start(RANDOM))
    assert len(batch) == 4
    assert all(isinstance(candidate.kernel, Kernel) for candidate in batch)


@pytest.mark.tvm
def test_replay_trace_with_a_seed_is_the_same_every_time(start: Start) -> None:
    first, second = start(RANDOM), start(RANDOM)
    assert [texts(take(first)) for _ in range(2)] == [texts(take(second)) for _ in range(2)]


@pytest.mark.tvm
def test_another_seed_is_another_search(start: Start) -> None:
    other = SearchSettings(8, 4, 1, "replay-trace", "all", batch=4)
    assert texts(take(start(RANDOM))) != texts(take(start(other)))


@pytest.mark.tvm
def test_several_processes_search_elsewhere_and_learn_from_each_other(start: Start) -> None:
    proposals = start(replace(EVOLVING, threads=6))
    assert proposals.processes == 2
    proposals.request()
    batches = [texts(proposals.take()) for _ in range(2)]
    assert set(batches[0]) != set(batches[1])
    proposals.learn([Scored(record, 1e-3) for batch in batches for record in batch])
    assert take(proposals)


def test_a_search_told_to_stop_waits_no_longer(start: Start) -> None:
    proposals, stop = start(EVOLVING), Event()
    stop.set()
    proposals.request()
    assert proposals.take(stop) == []


def test_a_batch_must_be_requested(start: Start) -> None:
    with pytest.raises(ValueError, match="no batch was requested"):
        start(RANDOM).take()


@pytest.mark.tvm
def test_scores_are_learned(start: Start) -> None:
    proposals = start(EVOLVING)
    batch = take(proposals)
    scores = [1e-3, 2e-3, None, 3e-3]
    proposals.learn([Scored(r, s) for r, s in zip(texts(batch), scores, strict=True)])
    assert take(proposals)


@pytest.mark.tvm
def test_an_earlier_search_is_learned(start: Start) -> None:
    known = [Scored(record, 1e-3) for record in texts(take(start(EVOLVING)))]
    again = start(EVOLVING, known)
    assert take(again)
    assert json.loads(again.stored_workload() or "")


@pytest.mark.tvm
def test_a_search_that_goes_on_proposes_something_else(start: Start) -> None:
    first = texts(take(start(RANDOM)))
    again = texts(take(start(RANDOM, [Scored(record, 1e-3) for record in first])))
    assert set(first) != set(again)


def test_who_is_told_to_stop_does_not_wait_for_the_process(start: Start) -> None:
    proposals, stop = start(RANDOM), Event()
    proposals.request()
    stop.set()
    assert proposals.stored_workload(stop) is None
    assert proposals.take(stop) == []


@pytest.mark.tvm
def test_a_batch_whose_lowering_is_dropped_is_not_waited_for() -> None:
    class Closed:
        def lower(self, *_: object) -> Future[Kernel]:
            future: Future[Kernel] = Future()
            future.cancel()
            return future

    store: Any = Closed()
    proposals = Proposals(WORKLOAD, "sm_90", RANDOM, store, lambda _: None, lambda: ())
    with proposals, pytest.raises(CancelledError):
        take(proposals)


@pytest.mark.tvm
def test_a_search_survives_the_death_of_its_process(start: Start) -> None:
    proposals = start(RANDOM)
    take(proposals)
    os.kill(pid_of(proposals), signal.SIGKILL)
    assert len(take(proposals)) == 4


@pytest.mark.slow
def test_a_search_whose_process_keeps_dying_is_told(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    proposals = start(RANDOM)
    worker: Any = proposals._searches[0]._worker
    worker._factory = "tuning_child:Dying"
    with pytest.raises(InputError, match=r"TVM's search of small keeps ending its process"):
        take(proposals)


@pytest.mark.tvm
def test_what_goes_wrong_while_learning_is_told(start: Start) -> None:
    proposals = start(EVOLVING)
    take(proposals)
    proposals.learn([Scored("[[[], []], [1.0], {}, []]", 1e-3)])
    with pytest.raises(InputError, match="TVM's search ended with an error"):
        take(proposals)
