"""The search's own process, with TVM: what it proposes, learns and survives."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from pytest_gpuenergy.kernels import Kernel
from pytest_gpuenergy.support import InputError, Worker
from pytest_gpuenergy.tuners import KernelStore, SearchSettings, TvmProposer, load_database
from pytest_gpuenergy.tuners.tvm import tvm_space
from pytest_gpuenergy.tuning import Candidate, Feedback
from pytest_gpuenergy.workloads import Conv2d

pytestmark = pytest.mark.tvm

WORKLOAD = Conv2d.of("tiny", 1, 4, 4, 4, 4, 1, 1, 1, 0)
RANDOM = SearchSettings(3, 1, "replay-trace", "gemm", batch=2)
EVOLVING = SearchSettings(3, 1, "evolutionary", "gemm", batch=2, population=4, generations=1)

Start = Callable[..., TvmProposer]


@contextmanager
def starting(store: KernelStore, folder: Path) -> Iterator[Start]:
    with ExitStack() as stack:

        def go(settings: SearchSettings, known: Sequence[Feedback] = ()) -> TvmProposer:
            proposer = TvmProposer(
                WORKLOAD, "sm_90", settings, store, prepared.append, folder, lambda: known
            )
            return stack.enter_context(proposer)

        prepared: list[Kernel] = []
        yield go


@pytest.fixture
def start(store: KernelStore, tmp_path: Path) -> Iterator[Start]:
    with starting(store, tmp_path) as go:
        yield go


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("searching")


@pytest.fixture(scope="module")
def searching(store: KernelStore, folder: Path) -> Iterator[TvmProposer]:
    """A search at random that may be asked for any number of batches."""
    with starting(store, folder) as go:
        yield go(RANDOM)


def take(proposer: TvmProposer) -> list[Candidate]:
    """A batch; another one is not made before it is asked for."""
    return proposer.take(1, Event())


def texts(candidates: Sequence[Candidate]) -> list[str]:
    return [candidate.recipe for candidate in candidates]


def test_several_processes_search_elsewhere_and_learn_all(start, searching):
    known = [Feedback(record, 1e-3) for record in texts(take(searching))]
    proposer = start(replace(EVOLVING, threads=6), known)
    assert proposer.processes == 2
    batches = [texts(take(proposer)) for _ in range(2)]
    assert set(batches[0]) != set(batches[1])
    proposer.learn([Feedback(record, 1e-3) for batch in batches for record in batch])
    assert take(proposer)


def test_a_batch_is_lowered_and_its_workload_kept_beside_the_records(searching, folder):
    batch = take(searching)
    assert len(batch) == 2
    assert all(isinstance(candidate.kernel, Kernel) for candidate in batch)
    (folder / "database_tuning_record.json").touch()
    (stored,) = load_database(folder).workloads
    assert json.loads(stored)


def test_the_next_batch_is_made_while_the_first_one_is_evaluated(searching):
    assert len(searching.take(99, Event())) == 2
    (making,) = searching._making
    assert len(making.result(timeout=120)) == 2


def test_who_is_told_to_stop_does_not_wait_for_the_process(searching):
    stop = Event()
    stop.set()
    assert searching.take(99, stop) == []


def test_a_batch_whose_lowering_is_dropped_is_not_waited_for(searching, store, monkeypatch):
    def lower(*_: object) -> Future[Kernel]:
        future: Future[Kernel] = Future()
        future.cancel()
        return future

    monkeypatch.setattr(store, "lower", lower)
    if searching._making:  # one is made already
        take(searching)
    with pytest.raises(CancelledError):
        take(searching)


def test_a_search_survives_the_death_of_its_process(searching):
    take(searching)
    worker: Any = searching._searches[0]._worker
    os.kill(worker.pid, signal.SIGKILL)
    assert [len(take(searching)) for _ in range(2)] == [2, 2]


def test_a_search_whose_process_keeps_dying_is_told(start, tmp_path, monkeypatch):
    (tmp_path / "dying.py").write_text("import os\nclass Dying:\n    __init__ = os.abort\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(tvm_space, "Worker", lambda *_, **__: Worker("dying:Dying"))
    with pytest.raises(InputError, match=r"TVM's search of tiny keeps ending its process"):
        take(start(RANDOM))


def test_what_goes_wrong_while_learning_is_told(start):
    proposer = start(EVOLVING, [Feedback("[[[], []], [1.0], {}, []]", 1e-3)])
    with pytest.raises(InputError, match="TVM's search ended with an error"):
        take(proposer)
