"""A worker's end of the line to its controller: pytest-xdist's own carries reports only.

The line is a channel of execnet's that the controller puts into the worker's input. What is said on
it is plain data: a tuple of a kind and what belongs to it.
"""

from __future__ import annotations

import os
import queue
import signal
from typing import Any

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
