"""A child process that answers calls, may die, and never outlives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from processes import has_ended

from pytest_gpuenergy.support import (
    DeviceError,
    KernelFault,
    Worker,
    WorkerDiedError,
    WorkerTimeoutError,
)

Start = Callable[..., Worker]
FACTORY = '''
import os, signal, sys, threading
from pytest_gpuenergy.support.errors import KernelFault


class Awkward(Exception):
    """An error that can be pickled but not unpickled."""

    def __init__(self, one, two):
        super().__init__(one + two)


class Subject:
    def __init__(self, base=0, broken=False, farewell=None):
        if broken:
            raise ValueError("cannot be made")
        self.base, self.calls, self.farewell = base, 0, farewell

    def add(self, number):
        self.calls += 1
        return self.base + number

    def count(self):
        return self.calls

    def pid(self):
        return os.getpid()

    def variable(self, name):
        return os.environ.get(name)

    def fault(self):
        raise KernelFault("timeout", "too slow")

    def awkward(self):
        raise Awkward("two ", "words")

    def unpicklable_result(self):
        return lambda: 0

    def unpicklable_error(self):
        raise ValueError(threading.Lock())

    def leave(self, code):
        print("last words", file=sys.stderr, flush=True)
        os._exit(code)

    def exit(self):
        sys.exit("so long")

    def die(self, number):
        os.kill(os.getpid(), number)

    def hang(self):
        while True:
            signal.pause()

    def open_and_hang(self, path):
        open(path, "w").close()
        self.hang()

    def stubborn(self):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.hang()

    def talk(self, size):
        print("x" * size, flush=True)
        return size

    def interrupted(self):
        os.kill(os.getpid(), signal.SIGINT)
        return "still here"

    def close(self):
        if self.farewell:
            with open(self.farewell, "w") as file:
                file.write("bye")
'''


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Worker]]:
    """Makes workers of the class above, and ends them after the test."""
    (tmp_path / "worker_subject.py").write_text(FACTORY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    workers: list[Worker] = []

    def make(*args: Any, environment: dict[str, str] | None = None) -> Worker:
        workers.append(Worker("worker_subject:Subject", *args, environment=environment))
        return workers[-1]

    yield make
    for worker in workers:
        worker.kill()


def test_the_object_lives_in_another_process_from_call_to_call(start):
    worker = start(40)
    assert worker.pid is None
    assert worker.call("add", 2) == 42
    assert worker.call("add", 1) == 41
    assert worker.call("count") == 2
    assert worker.call("pid") == worker.pid != os.getpid()


def test_a_child_can_be_started_before_it_is_called(start):
    worker = start()
    worker.start()
    pid = worker.pid
    worker.start()
    assert worker.call("pid") == worker.pid == pid is not None


def test_a_child_that_is_killed_has_ended(start):
    worker = start()
    first = worker.call("pid")
    worker.kill()
    assert worker.pid is None
    assert not Path(f"/proc/{first}").exists()
    assert worker.call("pid") != first


def test_variables_are_set_in_the_child_only(start):
    worker = start(environment={"GPUENERGY_TEST_WORKER": "7"})
    assert worker.call("variable", "GPUENERGY_TEST_WORKER") == "7"
    assert "GPUENERGY_TEST_WORKER" not in os.environ


def test_what_the_method_raises_is_raised_and_the_child_survives(start):
    worker = start()
    pid = worker.call("pid")
    with pytest.raises(KernelFault, match="too slow") as raised:
        worker.call("fault")
    assert raised.value.outcome == "timeout"
    with pytest.raises(AttributeError, match="nothing"):
        worker.call("nothing")
    assert worker.call("pid") == pid


def test_a_factory_that_fails_is_tried_again(start):
    worker = start(0, True)
    for _ in range(2):
        with pytest.raises(ValueError, match="cannot be made"):
            worker.call("add", 1)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("unpicklable_result", "unpicklable_result: .*lambda"),
        ("unpicklable_error", "unpicklable_error: ValueError.*lock"),
        ("awkward", "awkward: Awkward.*two words"),
    ],
)
def test_what_cannot_travel_is_told_in_words(start, method, said):
    worker = start()
    with pytest.raises(DeviceError, match=said):
        worker.call(method)
    assert worker.call("add", 1) == 1


def test_an_argument_that_cannot_travel_is_an_error(start):
    worker = start()
    with pytest.raises(Exception, match="<lambda>"):
        worker.call("add", lambda: 0)
    assert worker.call("add", 1) == 1


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (("leave", 3), r"Subject exited with 3: last words\."),
        (("exit",), r"exited with 1: so long\."),
        (("die", signal.SIGKILL), "was ended by SIGKILL"),
        (("die", signal.SIGSEGV), "was ended by SIGSEGV"),
        (("die", signal.SIGABRT), "was ended by SIGABRT"),
        (("die", signal.SIGRTMIN + 3), r"was ended by SIGRTMIN\+3"),
    ],
    ids=str,
)
def test_how_a_child_ended_is_told_with_its_last_words(start, call, said):
    with pytest.raises(WorkerDiedError, match=said):
        start().call(*call)


def test_after_its_death_the_next_call_starts_another(start):
    worker = start(5)
    first = worker.call("pid")
    with pytest.raises(WorkerDiedError):
        worker.call("die", signal.SIGKILL)
    assert worker.pid is None
    assert worker.call("add", 1) == 6
    assert worker.pid != first


def test_a_child_that_died_between_calls_is_noticed(start):
    worker = start()
    pid = worker.call("pid")
    os.kill(pid, signal.SIGKILL)
    assert has_ended(pid)
    with pytest.raises(WorkerDiedError, match="SIGKILL"):
        worker.call("add", 1)


@pytest.mark.parametrize("method", ["hang", "stubborn"])
def test_a_child_that_does_not_answer_is_killed(start, method):
    worker = start()
    pid = worker.call("pid")
    with pytest.raises(WorkerTimeoutError, match=rf"did not respond to {method} within 0\.05 s"):
        worker.call(method, timeout_s=0.05)
    assert has_ended(pid)
    assert worker.call("add", 1, timeout_s=60) == 1


def test_what_the_child_prints_does_not_block_it(start):
    assert start().call("talk", 1 << 20, timeout_s=60) == 1 << 20


def test_ctrl_c_is_the_parents_affair(start):
    assert start().call("interrupted") == "still here"


def test_closing_lets_the_object_say_farewell(start, tmp_path):
    worker = start(0, False, str(tmp_path / "farewell"))
    pid = worker.call("pid")
    worker.close()
    assert (tmp_path / "farewell").read_text() == "bye"
    assert has_ended(pid)


@pytest.mark.parametrize("end", [Worker.close, Worker.kill])
def test_ending_is_idempotent_and_not_final(start, end):
    worker = start()
    end(worker)
    worker.call("add", 1)
    end(worker)
    end(worker)
    assert worker.pid is None
    assert worker.call("add", 1) == 1


def test_a_retired_worker_starts_no_child(start):
    worker = start()
    worker.start()
    worker.retire()
    with pytest.raises(WorkerDiedError, match="has been ended"):
        worker.call("count")
    assert worker.pid is None


@pytest.mark.slow
@pytest.mark.parametrize("end", [Worker.kill, Worker.retire])
def test_another_thread_ends_a_call_under_way(start, tmp_path, end):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for _ in range(5):  # the two threads notice the death at the same time, in either order
        worker, errors = start(), []
        thread = Thread(target=_note_error, args=(errors, worker, str(fifo)))
        thread.start()
        fifo.read_bytes()  # returns once the child is within the call
        end(worker)
        thread.join()
        assert errors == [WorkerDiedError]
        assert worker.pid is None


def _note_error(errors: list[type[BaseException]], worker: Worker, fifo: str) -> None:
    try:
        worker.call("open_and_hang", fifo)
    except BaseException as error:
        errors.append(type(error))


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_a_child_outlives_the_thread_that_started_it(start):
    worker = start()
    thread = Thread(target=worker.call, args=("count",))
    thread.start()
    number = thread.native_id
    thread.join()
    pid = worker.pid
    while Path(f"/proc/self/task/{number}").exists():
        pass  # the thread has returned, and ends
    assert worker.call("pid") == pid


@pytest.mark.filterwarnings("ignore:.*is multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_starts_children_too(start):
    start().call("pid")
    forked = os.fork()
    if not forked:
        os._exit(start(40).call("add", 2))
    assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 42


PARENT = """
    import signal, sys
    from pytest_gpuenergy.support.worker import Worker
    worker = Worker("worker_subject:Subject")
    print(worker.call("pid"), flush=True)
    if sys.argv[1] == "busy":
        worker.call("hang")
    signal.pause()
"""


@pytest.mark.usefixtures("start")
@pytest.mark.parametrize("state", ["busy", "idle"])
def test_a_child_ends_when_its_parent_is_killed(state):
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PARENT), state], stdout=subprocess.PIPE, text=True
    )
    with parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    assert has_ended(child)


@pytest.mark.usefixtures("start")
def test_a_child_whose_parent_is_already_gone_ends(tmp_path):
    # Another process number than its real parent's: as if that had died before it looked.
    script = (
        "import subprocess, sys\n"
        "from multiprocessing.connection import Pipe\n"
        "ours, theirs = Pipe()\n"
        "child = subprocess.Popen([sys.executable, '-m', 'pytest_gpuenergy.support.worker',"
        " str(theirs.fileno())], pass_fds=[theirs.fileno()])\n"
        "ours.send(('worker_subject:Subject', (), 1))\n"
        "sys.exit(child.wait(timeout=60))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, timeout=60, check=False, capture_output=True
    )
    assert (ended.returncode, ended.stderr) == (1, b"")
