"""Handles SIGINT, SIGTERM and SIGHUP, so that a GPU's settings are restored."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterable, Iterator
from typing import Any

_TERMINATION = (signal.SIGTERM, signal.SIGHUP)
TERMINATING = (signal.SIGINT, *_TERMINATION)
"""Signals that end a run."""


def signal_name(number: int) -> str:
    """Return the name of a signal, including realtime signals that Python has no name for."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN{number - signal.SIGRTMIN:+d}"


@contextlib.contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the run as Ctrl-C does, so that everything is restored.

    Existing handlers, such as those of `interrupt_once`, are kept.
    """

    def interrupt(number: int, _frame: Any) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    unhandled = [n for n in _TERMINATION if signal.getsignal(n) is signal.SIG_DFL]
    with handled_by(interrupt, unhandled):
        yield


@contextlib.contextmanager
def interrupt_once(stop: threading.Event | None = None) -> Iterator[None]:
    """Let the first terminating signal interrupt the run; ignore more of them during cleanup.

    Args:
        stop: set by the first signal, which then does not interrupt; the second one does.
    """
    interrupted = threading.Event()

    def on_signal(number: int, _frame: Any) -> None:
        if stop is not None and not stop.is_set():
            stop.set()
        elif not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt(signal.Signals(number).name)

    with handled_by(on_signal, TERMINATING):
        yield


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold terminating signals back until the block is done, then deliver them."""
    held: list[int] = []
    try:
        with handled_by(lambda number, _frame: held.append(number), TERMINATING):
            yield
    finally:
        for number in held:
            signal.raise_signal(number)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore terminating signals: the run has been interrupted and is ending already."""
    with handled_by(lambda _number, _frame: None, TERMINATING):
        yield


@contextlib.contextmanager
def handled_by(handler: Any, numbers: Iterable[signal.Signals]) -> Iterator[None]:
    """Install ``handler`` for signals during the block; does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # A handler that was not installed from Python cannot be restored, so it is kept. Ignored
    # signals stay ignored: nohup relies on that.
    replaced = [n for n in numbers if signal.getsignal(n) not in (None, signal.SIG_IGN)]
    previous = {number: signal.signal(number, handler) for number in replaced}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)
