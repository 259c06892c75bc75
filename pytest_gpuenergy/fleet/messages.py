"""What a controller, its relays and their workers say to each other, besides pytest-xdist's own."""

from __future__ import annotations

from typing import Any

from pytest_gpuenergy.support.terminal import printable
from pytest_gpuenergy.support.text import shortened

SEAT = "gpuenergy_seat"
"""Key of ``workerinput``: what a relay has to know. Removed before the worker sees it."""

STATION = "gpuenergy_station"
"""Key of ``workerinfo``: host, UUID and name of the GPU that a worker has."""

GAVE_UP = "gpuenergy_gave_up"
"""Key of ``workeroutput``: why there was no worker; empty if none was needed any more."""

STARTED, UNFIT = "started", "unfit"
"""The first word from a worker: with what there is at its place, or why it cannot be used."""

PULSE = "pulse"
"""Key of what a worker is asked when it begins: the channel of beats, see `pulse`."""

INTERRUPT: tuple[str, dict[str, Any]] = ("gpuenergy-interrupt", {})
"""Interrupts a worker; in the form of pytest-xdist's commands, none of which does."""


def last_line(text: str) -> str:
    """The last line that a program has printed, as a sentence; empty if it has printed nothing."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    last = shortened(printable(lines[-1]), 300)
    return last if last.endswith((".", "!", "?")) else f"{last}."
