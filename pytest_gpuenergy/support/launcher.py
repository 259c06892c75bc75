"""Starts processes from a thread that lives as long as this process does.

A child that asks the kernel to be ended with its parent (``PR_SET_PDEATHSIG``, see prctl(2)) ends
with the thread that started it. Threads of a pool end with their pool; this one does not.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Lock, Thread

_Popen = subprocess.Popen[bytes]
_Order = tuple[Callable[[], _Popen], "Future[_Popen]"]


class _Launcher:
    """Calls what it is given on a thread of its own, which the first call starts."""

    def __init__(self) -> None:
        self._orders: SimpleQueue[_Order] = SimpleQueue()
        self._thread: Thread | None = None
        self._lock = Lock()

    def call(self, start: Callable[[], _Popen]) -> _Popen:
        """What ``start`` returns or raises there."""
        with self._lock:
            if self._thread is None:
                # A daemon, because at exit others are waited for, and children would end too early.
                self._thread = Thread(target=self._run, name="launcher", daemon=True)
                self._thread.start()
        future: Future[_Popen] = Future()
        self._orders.put((start, future))
        return future.result()

    def _run(self) -> None:
        while True:
            start, future = self._orders.get()
            try:
                future.set_result(start())
            except BaseException as error:
                future.set_exception(error)
            del start, future  # or they would live until the next order


_launcher = _Launcher()


def _renew() -> None:
    global _launcher
    _launcher = _Launcher()  # the thread has not come along


os.register_at_fork(after_in_child=_renew)


def launched(start: Callable[[], _Popen]) -> _Popen:
    """The process that ``start`` starts, which outlives the calling thread.

    Raises:
        Exception: whatever ``start`` raises.
    """
    return _launcher.call(start)
