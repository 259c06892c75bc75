"""Both ends of the line between a worker of pytest-xdist and its controller.

pytest-xdist's own connection carries reports only. The line is a channel of execnet's that the
controller puts into the worker's input. A message is plain data: a tuple of its kind and the values
that belong to it. The controller's end also assigns a GPU to each worker.

Every pytest run imports this module, so it needs only the standard library and pytest.
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

# Messages of workers, each with its values. A kind of `report.RECORD_TYPES` is one too, with a line
# that was appended to the worker's run folder.
GROUPS = "groups"
"""Names of the collected items' groups, and for each item the place of its group, -1 for none."""
RUN = "run"
"""The identity of the run on this worker, as JSON: it has claimed its GPU."""
UNUSABLE = "unusable"
"""The reason, as a sentence, why this worker can measure nothing, and the name of its host."""
BAD_OPTION = "bad option"
"""The same as `UNUSABLE`, because of an option that cannot work with this worker's GPU."""
DEFERRED = "deferred"
"""The node id of an item that this worker did not run, because it is unusable."""
FAILED_HERE = "failed here"
"""The node id of an item that failed because its host has stopped working; it does not count."""
BEGAN = "began"
"""The node id of the item that this worker begins."""
SET = "set"
"""The label of the setpoint that is about to be set; empty when the prior settings are restored."""
ENDED_BY = "ended by"
"""The name of the signal that ends this worker and did not come from its controller."""
RESTORED = "restored"
"""A sentence about settings that a dead run had left on this worker's host."""
MENDED = "mended"
"""The UUIDs of GPUs on this worker's host whose settings have been restored after dead runs."""
ENDED = "ended"
"""The GPU is released, and nothing more will be measured."""
ASK_ITEM, ASK_CAP, ASK_RUN = "item?", "cap?", "run?"
"""Questions about the run being resumed: an item's measurement, any under a cap, its identity."""
QUESTIONS = (ASK_ITEM, ASK_CAP, ASK_RUN)

# Messages of the controller.
ANSWER = "answer"
INTERRUPT = "interrupt"

_ANSWER_WAIT_S = 60.0
"""The time after which a worker without an answer goes on as if the controller knew nothing."""
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


class Link:
    """The worker's end: tells the controller what happens here, asks it, and is interrupted by it.

    Args:
        channel: the channel in the worker's input.

    Attributes:
        armed: whether an interrupt from the controller, or its death, interrupts this process. It
            is set while this process handles signals.
        interrupted: whether it has been interrupted in this way.
    """

    def __init__(self, channel: Any) -> None:
        self.armed = self.interrupted = False
        self._channel = channel
        self._answers: queue.SimpleQueue[tuple[str, str, bytes | None] | None] = queue.SimpleQueue()

    def listen(self) -> None:
        """Start to receive answers and interrupts."""
        self.armed = True
        self._channel.setcallback(self._received, endmarker=None)

    def tell(self, kind: str, *data: object) -> None:
        """Send a message; it is dropped if the controller is gone, as results are also on disk."""
        try:
            self._channel.send((kind, *data))
        except OSError:
            self._answers.put(None)

    def ask(self, kind: str, about: str = "") -> bytes | None:
        """Ask the controller a question; return None if it does not know or does not answer."""
        self.tell(kind, about)
        while True:
            try:
                answer = self._answers.get(timeout=_ANSWER_WAIT_S)
            except queue.Empty:
                return None
            if answer is None:
                return None
            if answer[:2] == (kind, about):  # others are late answers to earlier questions
                return answer[2]

    def _received(self, message: Any) -> None:
        """Take a message, in execnet's receiving thread; None means that the controller is gone."""
        if message is not None and message[0] == ANSWER:
            self._answers.put(tuple(message[1:]))
            return
        self._answers.put(None)
        if self.armed and not self.interrupted:
            self.interrupted = True
            os.kill(os.getpid(), signal.SIGTERM)


class WorkerPlugin:
    """The controller's end: gives each worker a GPU, and a dead worker's GPU to its replacement.

    A controller collects nothing. Unless one of our options is set, it learns that there are items
    of ours from the first message of a worker.

    Args:
        load: loads the `RunPlugin`, which sets ``on_message``.

    Attributes:
        before_start: called once, before the first worker starts.
        on_message: called in the main thread with a worker and its message.
        answer: returns the answer to a worker's question; called in a receiving thread.
        defers: whether items that a worker cannot measure go to others.
        lost: whether a worker died.
        problems: sentences from workers that ended.
        numbers: the number of each worker's GPU.
        next_number: the GPU number for the next worker to start; None for the lowest free one.
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
        """The id of the run that all workers write to, made when it is first needed."""
        from pytest_gpuenergy.record import new_run_id

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
        """Pass on the messages that have arrived."""
        while self._inbox:
            self._load()
            self.on_message(*self._inbox.popleft())

    @pytest.hookimpl(tryfirst=True)  # before the terminal asks for an item's status
    def pytest_runtest_logreport(self) -> None:
        """Read the messages that came before an item's report."""
        self.read()

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_xdist_node_collection_finished(self) -> None:
        """Read the message with the groups of the collected items."""
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
        """Take a message, in a receiving thread of execnet; None means that the worker is gone."""
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
            return  # the worker is gone, which pytest-xdist will notice


def is_plain(spec: Any) -> bool:
    """Return whether a worker is an ordinary process on this machine, in the same folder."""
    elsewhere = ("python", "via", "chdir", "gpuenergy_slot")
    return bool(spec.popen) and not any(getattr(spec, name, None) for name in elsewhere)
