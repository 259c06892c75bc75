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

from pytest_gpuenergy.kernels import Kernel
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.tuners import KernelStore, SearchSettings, TvmProposer, load_database
from pytest_gpuenergy.tuning import Candidate, Feedback
from pytest_gpuenergy.workloads import Conv2d

pytestmark = pytest.mark.tvm

WORKLOAD = Conv2d.of("small", 1, 7, 9, 8, 6, 3, 3, 1, 1)
RANDOM = SearchSettings(3, 1, "replay-trace", "all", batch=4)
EVOLVING = SearchSettings(3, 1, "evolutionary", "all", batch=4, population=8, generations=1)

Start = Callable[..., TvmProposer]


@pytest.fixture
def start(store: KernelStore, tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:

        def go(settings: SearchSettings, known: Sequence[Feedback] = ()) -> TvmProposer:
            proposer = TvmProposer(
                WORKLOAD, "sm_90", settings, store, prepared.append, tmp_path, lambda: known
            )
            return stack.enter_context(proposer)

        prepared: list[Kernel] = []
        yield go


def take(proposer: TvmProposer) -> list[Candidate]:
    """A batch; another one is not made before it is asked for."""
    return proposer.take(1, Event())


def texts(candidates: Sequence[Candidate]) -> list[str]:
    return [candidate.recipe for candidate in candidates]


def pid_of(proposer: TvmProposer) -> int:
    worker: Any = proposer._searches[0]._worker
    assert worker.pid is not None
    return int(worker.pid)


@pytest.mark.thorough  # test_space.py
def test_replay_trace_with_a_seed_is_the_same_every_time(start):
    first, second = start(RANDOM), start(RANDOM)
    assert [texts(take(first)) for _ in range(2)] == [texts(take(second)) for _ in range(2)]


@pytest.mark.thorough
def test_another_seed_is_another_search(start):
    other = SearchSettings(4, 1, "replay-trace", "all", batch=4)
    assert texts(take(start(RANDOM))) != texts(take(start(other)))


def test_several_processes_search_elsewhere_and_learn_from_each_other(start):
    proposer = start(replace(EVOLVING, threads=6))
    assert proposer.processes == 2
    batches = [texts(take(proposer)) for _ in range(2)]
    assert set(batches[0]) != set(batches[1])
    proposer.learn([Feedback(record, 1e-3) for batch in batches for record in batch])
    assert take(proposer)


@pytest.mark.thorough
def test_costs_are_learned(start):
    proposer = start(EVOLVING)
    batch = take(proposer)
    costs = [1e-3, 2e-3, None, 3e-3]
    proposer.learn([Feedback(r, c) for r, c in zip(texts(batch), costs, strict=True)])
    assert take(proposer)


def test_an_earlier_search_is_learned(start):
    known = [Feedback(record, 1e-3) for record in texts(take(start(EVOLVING)))]
    assert take(start(EVOLVING, known))


def test_a_batch_is_lowered_and_its_workload_kept_beside_the_records(start, tmp_path):
    batch = take(start(RANDOM))
    assert len(batch) == 4
    assert all(isinstance(candidate.kernel, Kernel) for candidate in batch)
    (tmp_path / "database_tuning_record.json").touch()
    (stored,) = load_database(tmp_path).workloads
    assert json.loads(stored)


def test_the_next_batch_is_made_while_the_first_one_is_evaluated(start):
    proposer = start(RANDOM)
    assert len(proposer.take(99, Event())) == 4
    (making,) = proposer._making
    assert len(making.result(timeout=120)) == 4


@pytest.mark.thorough  # test_space.py
def test_a_search_that_goes_on_proposes_something_else(start):
    first = texts(take(start(RANDOM)))
    again = texts(take(start(RANDOM, [Feedback(record, 1e-3) for record in first])))
    assert set(first) != set(again)


def test_who_is_told_to_stop_does_not_wait_for_the_process(start):
    proposer, stop = start(RANDOM), Event()
    stop.set()
    assert proposer.take(99, stop) == []


def test_a_batch_whose_lowering_is_dropped_is_not_waited_for(tmp_path):
    class Closed:
        def lower(self, *_: object) -> Future[Kernel]:
            future: Future[Kernel] = Future()
            future.cancel()
            return future

    store: Any = Closed()
    proposer = TvmProposer(WORKLOAD, "sm_90", RANDOM, store, lambda _: None, tmp_path, lambda: ())
    with proposer, pytest.raises(CancelledError):
        take(proposer)


def test_a_search_survives_the_death_of_its_process(start):
    proposer = start(RANDOM)
    take(proposer)
    os.kill(pid_of(proposer), signal.SIGKILL)
    assert len(take(proposer)) == 4


def test_a_search_whose_process_keeps_dying_is_told(start, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    proposer = start(RANDOM)
    take(proposer)
    worker: Any = proposer._searches[0]._worker
    worker._factory = "tuning_child:Dying"
    os.kill(pid_of(proposer), signal.SIGKILL)
    with pytest.raises(InputError, match=r"TVM's search of small keeps ending its process"):
        take(proposer)


def test_what_goes_wrong_while_learning_is_told(start):
    proposer = start(EVOLVING)
    take(proposer)
    proposer.learn([Feedback("[[[], []], [1.0], {}, []]", 1e-3)])
    with pytest.raises(InputError, match="TVM's search ended with an error"):
        take(proposer)
