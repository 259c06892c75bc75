"""Beats between a worker and what started it, by which each notices that the other is gone.

A connection that is cut without a word, such as by a switch or a host that loses its power, looks
like one on which nothing happens, for hours. So the controller's side sends a beat now and then,
and the worker's side answers. A worker that hears none restores the settings of its GPU and ends; a
controller that gets no answer gives the worker up.
"""

from __future__ import annotations

import io
import os
import select
import threading
from collections.abc import Callable
from typing import Any

BEATS = 6
"""In the time of silence after which a worker ends."""

PATIENCE = 5
"""So many times longer a worker's own silence may be: it may be busy, but not cut off."""


class Beat(threading.Thread):
    """Sends beats until it is stopped, or one cannot be sent.

    Args:
        send: sends one; raises `OSError` if that cannot be done any more.
        silence_s: see `BEATS`.
    """

    def __init__(self, send: Callable[[], object], silence_s: float) -> None:
        super().__init__(daemon=True)
        self._send = send
        self._period_s = silence_s / BEATS
        self._stopped = threading.Event()

    def run(self) -> None:
        try:
            while not self._stopped.wait(self._period_s):
                self._send()
        except OSError:
            return

    def stop(self) -> None:
        """Send no more."""
        self._stopped.set()


class Watch(threading.Thread):
    """Calls a function, once, when nothing has been heard for a time.

    It counts periods without a beat. So a process that was stopped itself, and did not run for
    hours, has time to hear what was sent to it meanwhile.

    Args:
        on_silence: is called from this thread.
        silence_s: the time.
    """

    def __init__(self, on_silence: Callable[[], object], silence_s: float) -> None:
        super().__init__(daemon=True)
        self._on_silence = on_silence
        self._period_s = silence_s / BEATS
        self._heard = False
        self._stopping = threading.Event()

    def heard(self) -> None:
        """Something has been heard."""
        self._heard = True

    def run(self) -> None:
        silent = 0
        while silent < BEATS:
            if self._stopping.wait(self._period_s):
                return
            silent = 0 if self._heard else silent + 1
            self._heard = False
        self._on_silence()

    def stop(self) -> None:
        """Call it no more: the connection has ended in the usual way."""
        self._stopping.set()


class HeardInput(io.FileIO):
    """What a process is sent; each piece of it is a sign, also of a request that takes long."""

    _watch: Watch | None = None

    def watch(self, watch: Watch) -> None:
        """Start this watch, which hears from now on."""
        self._watch = watch
        watch.start()

    def readinto(self, buffer: Any) -> int:
        size = super().readinto(buffer)
        if self._watch is not None:
            if size:
                self._watch.heard()
            else:
                self._watch.stop()
        return size


def takes_more(descriptor: int) -> bool:
    """Whether a pipe takes a short message without waiting for its reader."""
    return bool(select.select([], [descriptor], [], 0)[1])


def hang_up(descriptor: int) -> None:
    """Let what is written to a connection vanish, so that nobody waits for its dead end."""
    with open(os.devnull, "wb") as nothing:  # noqa: PTH123 -- for its descriptor
        os.dup2(nothing.fileno(), descriptor)
