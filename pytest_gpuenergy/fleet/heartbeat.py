"""Exchanges beats between a worker and its controller, so that each notices if the other is gone.

A connection that is cut silently, such as by a switch or a host that loses its power, looks for
hours as if it were idle. So the controller regularly sends a beat, and the worker answers. A worker
that hears no beat restores the settings of its GPU and ends; a controller that gets no answer gives
the worker up.
"""

from __future__ import annotations

import io
import os
import select
import threading
from collections.abc import Callable
from typing import Any

BEATS = 6
"""The number of beats in the time of silence after which a worker ends."""

PATIENCE = 5
"""The factor by which a worker's own silence may be longer, because it may be busy."""


class Beat(threading.Thread):
    """Sends beats until it is stopped, or one cannot be sent.

    Args:
        send: Sends a beat; raises `OSError` once that is impossible.
        silence_s: The time in which `BEATS` beats are sent.
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
        """Stop sending."""
        self._stopped.set()


class Watch(threading.Thread):
    """Calls a function, once, when nothing has been heard for a time.

    It counts periods without a beat. So a process that was itself stopped for hours has time to
    hear what was sent to it meanwhile.

    Args:
        on_silence: Called from this thread.
        silence_s: The time without a sign after which it is called.
    """

    def __init__(self, on_silence: Callable[[], object], silence_s: float) -> None:
        super().__init__(daemon=True)
        self._on_silence = on_silence
        self._period_s = silence_s / BEATS
        self._heard = False
        self._stopping = threading.Event()

    def heard(self) -> None:
        """Note that something was heard."""
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
        """Stop watching, because the connection has ended as it should."""
        self._stopping.set()


class HeardInput(io.FileIO):
    """The input of a process; each piece of it counts as a sign, even within a long request."""

    _watch: Watch | None = None

    def watch(self, watch: Watch) -> None:
        """Start a watch, which hears each piece from now on."""
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
    """Return whether a pipe takes a short message without waiting for its reader."""
    return bool(select.select([], [descriptor], [], 0)[1])


def hang_up(descriptor: int) -> None:
    """Discard what is written to a connection from now on, so that no write waits for a reader."""
    with open(os.devnull, "wb") as nothing:  # noqa: PTH123 -- for its descriptor
        os.dup2(nothing.fileno(), descriptor)
