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
"""The time that a function in C has to return after a signal."""

LONGEST_S = 600.0
"""The time that a limited reference may take; one that takes longer would not end."""

_BEGUN, _LIMITED, _ENDED, _HANDLED, _LEFT = b"\xf0", b"\xf1", b"\xf2", b"\xf3", b"\xf4"
"""Messages to the guard. Python itself writes the numbers of signals into the same pipe."""

_GUARD = r"""
import os, select, signal, sys, time
parent, grace, signals = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3].encode("latin-1")
running, limit, end, again = 0, None, None, None
while True:
    ends = [one for one in (limit, end) if running and one is not None]
    left = max(0.0, min(ends) - time.monotonic()) if ends else None
    if not select.select([0], [], [], left)[0]:
        if not again or end > time.monotonic() or os.getppid() != parent:
            break
        os.kill(parent, again)  # the first one may only have asked the run to stop
        end, again = end + grace / 5, 0
        continue
    said = os.read(0, 1)
    if not said:
        sys.exit()
    if said in b"\xf0\xf1":
        running += 1
        if running == 1 and end is not None:
            end = max(end, time.monotonic() + grace / 5)
        if said == b"\xf1":
            limit = time.monotonic() + float(sys.argv[4])
    elif said == b"\xf2":
        running -= 1
        limit = None
        if not running and not again:
            end = None
    elif said == b"\xf3":  # the run is ending in an orderly way
        end, again = time.monotonic() + 6 * grace, None
    elif said == b"\xf4":
        end = again = None
    elif said in signals and (end is None or again is None):
        end, again = time.monotonic() + grace, said[0]
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


_guards: list[_Guard] = []
"""It holds the guard of this process, once one is needed."""

_running: set[int] = set()
"""The threads, other than the main one, in which code of others runs."""

_changed = threading.Condition()
"""It is held by whoever changes `_guards` or `_running`, and tells others of it."""


def _guard() -> _Guard:
    with _changed:
        if not _guards or _guards[-1].pid != os.getpid():
            _guards[:] = [_Guard()]
        return _guards[-1]


@contextmanager
def watched() -> Iterator[None]:
    """Let signals end this process while other threads run code of others, `ended_by_signals`.

    A handler of a signal that returns lets the code go on for `GRACE_S`; then the signal is sent
    once more. If no handler raises then, the process is killed.

    Only the main thread has handlers: nothing changes in another one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    guard, raised = _guard(), False
    handlers = {number: signal.getsignal(number) for number in TERMINATING}

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal raised
        if callable(handler := handlers[signal.Signals(number)]):
            try:
                handler(number, frame)
            except BaseException:
                raised = True
                guard.tell(_HANDLED)
                raise

    before = signal.set_wakeup_fd(guard.pipe, warn_on_full_buffer=False)
    try:
        with handled_by(handle, [n for n, known in handlers.items() if callable(known)]):
            yield
    finally:
        signal.set_wakeup_fd(before)
        # An inner one leaves nothing; what an interrupt leaves running has to end soon.
        if before != guard.pipe and not (raised and _running):
            guard.tell(_LEFT)


@contextmanager
def ended_by_signals(*, limited: bool = False) -> Iterator[None]:
    """Let signals end this process while code of others runs, whatever that code calls.

    Python's handler of a signal runs as usual where it can. If the code still runs a little more
    than `GRACE_S` later, the process is killed, and a sentence on standard error says so. In the
    main thread memory is bounded by what is left, so that code which wants more fails with a
    MemoryError, before the system kills something.

    In another thread, signals end it only while the main one is `watched`.

    Args:
        limited: whether the process is killed too if it takes longer than `LONGEST_S`.
    """
    guard, thread = _guard(), threading.current_thread()
    in_main = thread is threading.main_thread()
    with contextlib.ExitStack() as stack:
        if in_main:
            stack.enter_context(watched())
            stack.enter_context(_bounded())
        guard.tell(_LIMITED if limited else _BEGUN)
        outermost = not in_main and threading.get_ident() not in _running
        if outermost:
            with _changed:
                _running.add(threading.get_ident())
        try:
            yield
        finally:
            guard.tell(_ENDED)
            if outermost:
                with _changed:
                    _running.discard(threading.get_ident())
                    _changed.notify_all()


def still_running(timeout_s: float) -> bool:
    """Whether code of others still runs in another thread after so much time.

    Python waits for such a thread before it exits.
    """
    with _changed:
        return not _changed.wait_for(lambda: not _running, timeout_s)


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
