"""Ends Python code of others that does not end by itself.

A function in C, such as ``sum`` or a product of NumPy's, keeps Python from handling signals until
it returns. Another process has to end it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from pytest_gpuenergy.support.memory import available_bytes
from pytest_gpuenergy.support.signals import TERMINATING, handled_by

GRACE_S = 5.0
"""After a signal, for a function in C to return."""

_LIMITED, _ENDED, _HANDLED = b"\xf0", b"\xf1", b"\xf2"
"""Beside the numbers of signals, which Python writes into the same pipe at once."""

_GUARD = r"""
import os, select, signal, sys, time
parent, grace, signals = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3].encode("latin-1")
limit, end = None, None
while True:
    ends = [one for one in (limit, end) if one is not None]
    left = max(0.0, min(ends) - time.monotonic()) if ends else None
    if not select.select([0], [], [], left)[0]:
        break
    said = os.read(0, 1)
    if not said:
        sys.exit()
    if said == b"\xf0":
        limit = time.monotonic() + float(sys.argv[4])
    elif said == b"\xf1":
        limit = end = None
    elif said == b"\xf2":
        end = None
    elif said in signals:
        end = end or time.monotonic() + grace
if os.getppid() == parent:
    why = "did not end by a signal" if end else "took too long"
    words = (
        f"gpuenergy: a reference {why}, so the process was killed. What it had set of the GPU is "
        "restored by the next run, or by gpuenergy powercap restore.\n"
    ).encode()
    os.write(2, words)
    try:
        if not os.isatty(2):  # such as in pytest, which captures it
            os.write(os.open("/dev/tty", os.O_WRONLY), words)
    except OSError:
        pass
    os.kill(parent, signal.SIGKILL)
"""


class EndlessError(Exception):
    """The code ran longer than it may."""


@contextmanager
def ended_after(seconds: float) -> Iterator[None]:
    """Raise `EndlessError` in this thread where the code within takes longer.

    It is raised between two steps of Python: a single call of a function in C is not interrupted.
    """
    thread, lock, left = threading.get_ident(), threading.Lock(), False

    def end() -> None:
        with lock:
            if not left:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread), ctypes.py_object(EndlessError)
                )

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        with lock:
            left = True
        timer.cancel()


class _Guard:
    """A process that ends this one where Python cannot."""

    def __init__(self) -> None:
        read, self.pipe = os.pipe()
        os.set_blocking(self.pipe, False)
        self.pid = os.getpid()
        signals = "".join(map(chr, TERMINATING))
        words = (str(self.pid), f"{GRACE_S}", signals, f"{LONGEST_S + GRACE_S}")
        # It ends with the pipe. In a group of its own, it gets no Ctrl-C.
        os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", "-c", _GUARD, *words],
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, read, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            ],
            setpgroup=0,
        )
        os.close(read)

    def tell(self, what: bytes) -> None:
        with contextlib.suppress(OSError):  # it has ended
            os.write(self.pipe, what)


LONGEST_S = 600.0
"""For a reference that is limited; what takes longer would not end."""

_guards: list[_Guard] = []
"""That of this process, once it is needed."""


@contextmanager
def ended_by_signals(*, limited: bool = False) -> Iterator[None]:
    """Let signals end this process while code of others runs, whatever that code calls.

    Python's handler of a signal runs as usual where it can. If it has not after `GRACE_S`, the
    process is killed, and a sentence on standard error says so. Memory is bounded by what is left,
    so that code which wants more fails with a MemoryError, before the system kills something.

    In another thread than the main one nothing changes, because signals do not reach it.

    Args:
        limited: whether the process is killed too if it takes longer than `LONGEST_S`.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if not _guards or _guards[-1].pid != os.getpid():
        _guards[:] = [_Guard()]
    guard = _guards[-1]
    handlers = {number: signal.getsignal(number) for number in TERMINATING}

    def handle(number: int, frame: FrameType | None) -> None:
        guard.tell(_HANDLED)
        if callable(handler := handlers[signal.Signals(number)]):
            handler(number, frame)

    before = signal.set_wakeup_fd(guard.pipe, warn_on_full_buffer=False)
    try:
        if limited:
            guard.tell(_LIMITED)
        with (
            handled_by(handle, [n for n, known in handlers.items() if callable(known)]),
            _bounded(),
        ):
            yield
    finally:
        signal.set_wakeup_fd(before)
        guard.tell(_ENDED)


@contextmanager
def _bounded() -> Iterator[None]:
    """Let this process take no more memory than there is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    left, taken = available_bytes(), _data_bytes()
    if left is None or taken is None or (soft != resource.RLIM_INFINITY and soft <= taken + left):
        yield
        return
    resource.setrlimit(resource.RLIMIT_DATA, (taken + left, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _data_bytes() -> int | None:
    """Memory of its own that this process has mapped; None where the kernel does not tell."""
    try:
        words = Path("/proc/self/statm").read_text(encoding="ascii").split()
        return int(words[5]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return None
