"""Bounds the memory and the time of third-party Python code, such as a user's reference.

A function in C, such as ``sum`` or a matrix product of NumPy, keeps Python from handling signals
until it returns. Therefore a guard, which is another process, ends this one if necessary.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from pytest_gpuenergy.support.errors import InputError
from pytest_gpuenergy.support.signals import TERMINATING, handled_by

_TABLE = Path("/proc/meminfo")
_ROW = re.compile(r"^(MemAvailable|SwapFree): +([0-9]+) kB$", re.MULTILINE)
_SMALL = 1 << 28
"""Bytes below which the memory that is left is not checked."""


@contextlib.contextmanager
def enough_memory(what: str, least_bytes: int) -> Iterator[None]:
    """Run a block that needs at least ``least_bytes`` of memory.

    The system does not refuse memory that it does not have; it kills this process or another one
    once that memory is used.

    Args:
        what: the subject of the message, such as ``The reference of NAME``.
        least_bytes: what the block needs at least.

    Raises:
        InputError: there is not enough memory.
    """
    if least_bytes >= _SMALL and (left := available_bytes()) is not None and least_bytes > left:
        raise InputError(
            f"{what} needs at least {least_bytes / 2**30:.1f} GiB of this machine's memory, which "
            f"has {left / 2**30:.1f} GiB left: choose smaller sizes."
        )
    try:
        yield
    except MemoryError:
        raise InputError(
            f"{what} needs more memory than this machine has left: choose smaller sizes."
        ) from None


def available_bytes() -> int | None:
    """Return the memory that is left, swap included; None where the kernel does not report it."""
    try:
        found = dict(_ROW.findall(_TABLE.read_text(encoding="ascii")))
    except (OSError, UnicodeDecodeError):
        return None
    return sum(int(kib) << 10 for kib in found.values()) if "MemAvailable" in found else None


GRACE_S = 5.0
"""The longest time in which a function in C returns after a signal."""

LONGEST_S = 600.0
"""The longest time of a limited reference; one that takes longer is considered endless."""

_BEGUN, _LIMITED, _ENDED, _HANDLED, _LEFT = b"\xf0", b"\xf1", b"\xf2", b"\xf3", b"\xf4"
"""Messages to the guard. Python's wakeup descriptor writes signal numbers to the same pipe."""

_GUARD = r"""
import os, select, signal, sys, time
parent, grace, signals = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3].encode("latin-1")
running, limit, end, again = 0, None, None, None
while True:
    ends = [time_s for time_s in (limit, end) if running and time_s is not None]
    left = max(0.0, min(ends) - time.monotonic()) if ends else None
    if not select.select([0], [], [], left)[0]:
        if not again or end > time.monotonic() or os.getppid() != parent:
            break
        os.kill(parent, again)  # the first one may only have asked the run to stop
        end, again = end + grace / 5, 0
        continue
    message = os.read(0, 1)
    if not message:
        sys.exit()
    if message in b"\xf0\xf1":
        running += 1
        if running == 1 and end is not None:
            end = max(end, time.monotonic() + grace / 5)
        if message == b"\xf1":
            limit = time.monotonic() + float(sys.argv[4])
    elif message == b"\xf2":
        running -= 1
        limit = None
        if not running and not again:
            end = None
    elif message == b"\xf3":  # the run is ending in an orderly way
        end, again = time.monotonic() + 6 * grace, None
    elif message == b"\xf4":
        end = again = None
    elif message in signals and (end is None or again is None):
        end, again = time.monotonic() + grace, message[0]
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
    """The code took longer than its time limit."""


@contextmanager
def ended_after(seconds: float) -> Iterator[None]:
    """Raise `EndlessError` in this thread if the block takes longer than this.

    It is raised between two bytecode instructions: a call of a function in C is not interrupted.
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
    """A process that kills this one if Python itself cannot end it."""

    def __init__(self) -> None:
        read, self.pipe = os.pipe()
        os.set_blocking(self.pipe, False)
        self.pid = os.getpid()
        signals = "".join(map(chr, TERMINATING))
        words = (str(self.pid), f"{GRACE_S}", signals, f"{LONGEST_S + GRACE_S}")
        # The guard exits once the pipe closes. In its own process group it receives no Ctrl-C.
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

    def tell(self, message: bytes) -> None:
        with contextlib.suppress(OSError):  # it has ended
            os.write(self.pipe, message)


_guards: list[_Guard] = []
"""The guard of this process, once one is needed."""

_running: set[int] = set()
"""The threads, other than the main one, that are running third-party code."""

_changed = threading.Condition()
"""The lock for `_guards` and `_running`; notified when a thread leaves `_running`."""


def _guard() -> _Guard:
    with _changed:
        if not _guards or _guards[-1].pid != os.getpid():
            _guards[:] = [_Guard()]
        return _guards[-1]


@contextmanager
def watched() -> Iterator[None]:
    """Let signals end this process while other threads run code in `ended_by_signals`.

    If a signal's handler returns, the code may go on for `GRACE_S`; then the signal is sent once
    more. If its handler does not raise then either, the process is killed.

    Python handles signals in the main thread only, so this does nothing in another thread.
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
        # Only the outermost context tells the guard, and not while code that has been
        # interrupted is still running: that must end soon.
        if before != guard.pipe and not (raised and _running):
            guard.tell(_LEFT)


@contextmanager
def ended_by_signals(*, limited: bool = False) -> Iterator[None]:
    """Let signals end this process while third-party code runs, whatever that code calls.

    Python's signal handlers run as usual where they can. If the code is still running a little more
    than `GRACE_S` later, the process is killed, and a sentence on standard error says so. In the
    main thread, memory is limited to what is left on the machine, so that code which needs more
    fails with a MemoryError before the system kills a process.

    In another thread, this takes effect only while the main thread is in `watched`.

    Args:
        limited: whether the process is also killed if the code takes longer than `LONGEST_S`.
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
    """Return whether another thread is still running third-party code after ``timeout_s``.

    Python waits for such a thread before it exits.
    """
    with _changed:
        return not _changed.wait_for(lambda: not _running, timeout_s)


@contextmanager
def _bounded() -> Iterator[None]:
    """Limit this process's memory to what it has and what the machine has left."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    left, taken = available_bytes(), None
    with contextlib.suppress(OSError, ValueError, IndexError):  # the kernel may not report it
        words = Path("/proc/self/statm").read_text(encoding="ascii").split()
        taken = int(words[5]) * resource.getpagesize()
    if left is None or taken is None or (soft != resource.RLIM_INFINITY and soft <= taken + left):
        yield
        return
    resource.setrlimit(resource.RLIMIT_DATA, (taken + left, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
