"""Ends Python code of others that does not end by itself."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager


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
