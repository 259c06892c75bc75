"""The interface of a source of energy readings, and the edges it finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from pytest_gpuenergy.support import DeviceError


class CounterError(DeviceError):
    """An energy source has stopped or run backwards; ``flag`` is the validity flag for it."""

    def __init__(self, flag: str, message: str) -> None:
        super().__init__(message)
        self.flag = flag


@dataclass(frozen=True)
class Edge:
    """The moment between ``after_s`` and ``before_s`` at which the energy reached ``energy_mj``."""

    after_s: float
    before_s: float
    energy_mj: float

    @cached_property
    def time_s(self) -> float:
        """The midpoint of the bracket around the moment."""
        return (self.after_s + self.before_s) / 2


class EnergySource(Protocol):
    """A source of the energy since some moment, which is known at edges.

    Attributes:
        name: the name in records: ``counter``, ``instant power`` or ``average power``.
        period_s: the time between two edges; known after `probe`.
        memory_s: the time over which a reading is averaged: for so long after a change of power, it
            still includes power from before the change. Known after `probe`.
    """

    name: str
    period_s: float
    memory_s: float

    def probe(self) -> Edge:
        """Determine the period and memory, just after a load has begun, and return an edge.

        Raises:
            CounterError: the source has stopped or run backwards.
            DeviceError: it cannot be read.
        """

    def next_edge(self, periods: int) -> Edge:
        """Return the edge about ``periods`` periods after the last one.

        Raises:
            CounterError: the source has stopped or run backwards.
            DeviceError: it cannot be read.
        """

    def times_s(self, edges: Sequence[Edge], begin: int = 0) -> tuple[list[float], float]:
        """Return the best estimates of the times of successive ``edges`` since the last `probe`.

        Returns:
            The times in seconds, and the standard error of the time from ``edges[begin]`` to the
            last edge.
        """
