"""Where joules come from: what every energy source offers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pytest_gpuenergy.support.errors import DeviceError


class CounterError(DeviceError):
    """An energy source stands still or runs backwards; ``flag`` names which."""

    def __init__(self, flag: str, message: str) -> None:
        super().__init__(message)
        self.flag = flag


@dataclass(frozen=True)
class Edge:
    """The energy reached ``energy_mj`` between ``after_s`` and ``before_s``."""

    after_s: float
    before_s: float
    energy_mj: float

    @property
    def time_s(self) -> float:
        """The middle of what is known of the moment."""
        return (self.after_s + self.before_s) / 2


class EnergySource(Protocol):
    """Energy since some moment, known at edges.

    Attributes:
        name: as in records: ``counter``, ``instant power`` or ``average power``.
        period_s: time between two edges; known after `probe`.
        memory_s: how far back a reading reaches: readings made sooner than this after a change
            of power still hold some of what was before. Known after `probe`.
    """

    name: str
    period_s: float
    memory_s: float

    def probe(self) -> Edge:
        """Learn the source's ways while a load has just begun, and return an edge.

        Raises:
            CounterError: the source stands still or runs backwards.
            DeviceError: it cannot be read.
        """

    def next_edge(self, periods: int) -> Edge:
        """The edge about ``periods`` periods after the last one.

        Raises:
            CounterError: the source stands still or runs backwards.
            DeviceError: it cannot be read.
        """

    def times_s(self, edges: Sequence[Edge], begin: int = 0) -> tuple[list[float], float]:
        """The times of successive ``edges`` since the last `probe`, as well as they are known.

        Returns:
            Times in seconds, and the standard error of the time from ``edges[begin]`` to the last.
        """
