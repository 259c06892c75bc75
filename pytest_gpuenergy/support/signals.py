"""What SIGINT, SIGTERM and SIGHUP do while a GPU is not as it was found."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterable, Iterator
from typing import Any

_TERMINATION = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the run as Ctrl-C does, so that everything is put back.

    A program that handles them already, such as by `interrupt_once`, keeps its handlers.
    """

    def interrupt(number: int, _frame: Any) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    unhandled = [n for n in _TERMINATION if signal.getsignal(n) is signal.SIG_DFL]
    with _handled_by(interrupt, unhandled):
        yield


@contextlib.contextmanager
def interrupt_once(stop: threading.Event | None = None) -> Iterator[None]:
    """Let one signal that ends a run interrupt it; none that follows cuts short the cleaning up.

    Args:
        stop: set by a first signal, which then does not interrupt; the next one does.
    """
    interrupted = threading.Event()

    def on_signal(number: int, _frame: Any) -> None:
        if stop is not None and not stop.is_set():
            stop.set()
        elif not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt(signal.Signals(number).name)

    with _handled_by(on_signal, (signal.SIGINT, *_TERMINATION)):
        yield


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold signals that end a run back until the block is done, then let them have their way."""
    held: list[int] = []
    try:
        with _handled_by(
            lambda number, _frame: held.append(number), (signal.SIGINT, *_TERMINATION)
        ):
            yield
    finally:
        for number in held:
            signal.raise_signal(number)


@contextlib.contextmanager
def _handled_by(handler: Any, numbers: Iterable[signal.Signals]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers, and only it is interrupted
        return
    # A handler that was not installed from Python cannot be put back: it stays. What is ignored
    # stays so too: nohup means it.
    known = [n for n in numbers if signal.getsignal(n) not in (None, signal.SIG_IGN)]
    previous = {number: signal.signal(number, handler) for number in known}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)
