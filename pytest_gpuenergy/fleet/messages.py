"""What a controller, its relays and their workers say to each other, besides pytest-xdist's own."""

from __future__ import annotations

from typing import Any

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
