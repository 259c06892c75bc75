"""A worker's end of the line to its controller: pytest-xdist's own carries reports only.

The line is a channel of execnet's that the controller puts into the worker's input. What is said on
it is plain data: a tuple of a kind and what belongs to it.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import pytest

LINE = "gpuenergy_line"
"""Key of a worker's ``workerinput``: the channel."""

# What workers say.
GROUPS = "groups"
"""Names of the collected items' groups, and for each item the place of its group, -1 for none."""
RUN = "run"
"""The identity of the run on this worker, as JSON: it has claimed its GPU."""
MEASUREMENT, CHECK, BOARD_CHECK = "measurement", "check", "board check"
"""A line that was appended to the worker's run folder."""
UNUSABLE = "unusable"
"""A sentence that says why this worker can measure nothing, and what its host is called."""
BAD_OPTION = "bad option"
"""As `UNUSABLE`, because of an option that cannot work with this worker's GPU."""
DEFERRED = "deferred"
"""The node id of an item that this worker did not run, because it is unusable."""
FAILED_HERE = "failed here"
"""The node id of an item that failed on a host that has stopped working; nothing counts of it."""
BEGAN = "began"
"""The node id of the item that begins."""
SET = "set"
"""The label of the setpoint that is about to be set; empty when the prior settings are restored."""
ENDED_BY = "ended by"
"""The name of the signal that ends this worker, from somebody else than its controller."""
RESTORED = "restored"
"""A sentence about settings that a dead run had left on this worker's host."""
MENDED = "mended"
"""The UUIDs of GPUs on this worker's host that no dead run has left set to anything any more."""
ENDED = "ended"
"""The GPU is released, and nothing more will be measured."""
ASK_ITEM, ASK_CAP, ASK_RUN = "item?", "cap?", "run?"
"""Questions about the run being resumed: its measurement of a node id, any under a cap, itself."""
QUESTIONS = (ASK_ITEM, ASK_CAP, ASK_RUN)

# What the controller says.
ANSWER = "answer"
INTERRUPT = "interrupt"

_PATIENCE_S = 60.0


class Link:
    """Tells the controller what happens here, asks it, and is interrupted by it.

    Args:
        channel: from the worker's input.

    Attributes:
        armed: whether an interrupt from the controller, or its death, interrupts this process; set
            while its signal handlers are in place.
        interrupted: whether it has been interrupted in this way.
    """

    def __init__(self, channel: Any) -> None:
        self.armed = self.interrupted = False
        self._channel = channel
        self._answers: queue.SimpleQueue[tuple[str, str, bytes | None] | None] = queue.SimpleQueue()

    def listen(self) -> None:
        """From now on, obey the controller."""
        self.armed = True
        self._channel.setcallback(self._received, endmarker=None)

    def tell(self, kind: str, *data: object) -> None:
        """Tell the controller something; without one, nothing happens: the disk has it."""
        try:
            self._channel.send((kind, *data))
        except OSError:
            self._answers.put(None)

    def ask(self, kind: str, about: str = "") -> bytes | None:
        """Ask the controller something; None when it does not know or does not answer."""
        self.tell(kind, about)
        while True:
            try:
                answer = self._answers.get(timeout=_PATIENCE_S)
            except queue.Empty:
                return None
            if answer is None:
                return None
            if answer[:2] == (kind, about):  # others come too late
                return answer[2]

    def _received(self, message: Any) -> None:
        """Called in execnet's receiving thread."""
        if message is not None and message[0] == ANSWER:
            self._answers.put(tuple(message[1:]))
            return
        self._answers.put(None)
        if self.armed and not self.interrupted:
            self.interrupted = True
            os.kill(os.getpid(), signal.SIGTERM)


RUN_ID, GPU = "gpuenergy_run_id", "gpuenergy_gpu"
"""Keys of a worker's ``workerinput``: the id of the run it writes to, and its GPU's number."""
BOARDS = "gpuenergy_boards"
"""Key of a worker's ``workerinput``: the number of GPUs in the run, if its controller knows it."""
DEFERS = "gpuenergy_defers"
"""Key of a worker's ``workerinput``: whether others run the items that it cannot measure."""
REMOTE = "gpuenergy_remote"
"""Key of a worker's ``workerinput``: whether it may be on another host than the controller."""
PROBLEMS = "gpuenergy_problems"
"""Key of a worker's ``workeroutput``: sentences about problems, from a worker that measured."""


class WorkerPlugin:
    """The controller's part: gives each worker a GPU, and a dead worker's GPU to its replacement.

    A controller collects nothing. Unless one of our options is set, it learns that there are items
    of ours from the first message of a worker.

    Args:
        load: loads the plugin that reports, which sets ``on_message``.

    Attributes:
        before_start: called once, before the first worker starts.
        on_message: is given a worker and what it said, in the main thread.
        answer: answers a question of a worker, in the thread that receives it.
        defers: whether items that a worker cannot measure go to others.
        lost: whether a worker died.
        problems: sentences from workers that ended.
        numbers: the numbers of the workers' GPUs.
        next_number: that of the next worker to start; None for the lowest that is free.
    """

    NAME = "gpuenergy-workers"

    def __init__(self, load: Callable[[], object]) -> None:
        self.before_start: Callable[[], None] | None = None
        self.on_message: Callable[[Any, tuple[Any, ...]], None] = lambda _node, _message: None
        self.answer: Callable[[str, str], bytes | None] = lambda _kind, _about: None
        self.defers = False
        self.lost = False
        self.problems: list[str] = []
        self.numbers: dict[Any, int] = {}
        self.next_number: int | None = None
        self._load = load
        self._inbox: deque[tuple[Any, tuple[Any, ...]]] = deque()
        self._lines: dict[Any, Any] = {}
        self._talking: set[Any] = set()
        self._silence = threading.Condition()

    @cached_property
    def run_id(self) -> str:
        """Id of the run that all workers write to; projects without items of ours need none."""
        from pytest_gpuenergy.support import new_run_id

        return new_run_id()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Give a starting worker the run id, the lowest GPU number that is free, and a line."""
        if self.before_start is not None:
            self.before_start()
            self.before_start = None
        free = set(range(len(self.numbers) + 1)) - set(self.numbers.values())
        self.numbers[node] = min(free) if self.next_number is None else self.next_number
        self.next_number = None
        line = self._lines[node] = node.gateway.newchannel()
        line.setcallback(partial(self._received, node), endmarker=None)
        node.workerinput |= {
            RUN_ID: self.run_id,
            GPU: self.numbers[node],
            DEFERS: self.defers,
            REMOTE: not is_plain(node.gateway.spec),
            LINE: line,
        }

    def interrupt(self) -> None:
        """Interrupt the workers, which otherwise finish their items first.

        pytest-xdist waits 10 s for them and then kills them, before they have restored anything.
        """
        for node in self.numbers:
            if node in self._talking:
                self._send(node, INTERRUPT)
                continue
            # execnet offers no other way to a worker without our plugin, and only to a local one.
            process = getattr(getattr(node.gateway, "_io", None), "popen", None)
            if isinstance(process, subprocess.Popen):
                process.terminate()  # SIGINT is ignored in what a script starts with &

    def await_silence(self, timeout_s: float) -> None:
        """Wait until the workers that measured have released their GPUs."""
        with self._silence:
            self._silence.wait_for(lambda: not self._talking, timeout_s)

    def read(self) -> None:
        """Hand on what the workers have said."""
        while self._inbox:
            self._load()
            self.on_message(*self._inbox.popleft())

    @pytest.hookimpl(tryfirst=True)  # before the terminal asks for an item's status
    def pytest_runtest_logreport(self) -> None:
        """Read what came before an item's report."""
        self.read()

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_xdist_node_collection_finished(self) -> None:
        """Read to which groups the collected items belong."""
        self.read()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Free the worker's GPU; ``error`` is not None when the worker died."""
        self.read()
        self.numbers.pop(node, None)
        self._lines.pop(node, None)
        self.lost = self.lost or error is not None
        problems = getattr(node, "workeroutput", {}).get(PROBLEMS)
        self.problems += problems or ()
        if self.lost or problems is not None:  # a dead worker may have left a power limit behind
            self._load()

    def _received(self, node: Any, message: tuple[Any, ...] | None) -> None:
        """Called in execnet's receiving threads, one for each worker."""
        if message is not None and message[0] in QUESTIONS:
            self._send(node, ANSWER, *message, self.answer(*message))
            return
        with self._silence:
            if message is None or message[0] == ENDED:
                self._talking.discard(node)
                self._silence.notify_all()
            else:
                self._talking.add(node)
        if message is not None:
            self._inbox.append((node, message))

    def _send(self, node: Any, *message: object) -> None:
        line = self._lines.get(node)
        try:
            if line is not None:
                line.send(message)
        except OSError:
            return  # it is gone, which pytest-xdist will notice


def is_plain(spec: Any) -> bool:
    """Whether a worker is just another process of this machine."""
    elsewhere = ("python", "via", "chdir", "gpuenergy_seat")
    return bool(spec.popen) and not any(getattr(spec, name, None) for name in elsewhere)
