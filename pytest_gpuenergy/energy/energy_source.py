"""What every source of energy readings offers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from pytest_gpuenergy.support import DeviceError


class CounterError(DeviceError):
    """An energy source has stopped or run backwards; ``flag`` says which."""

    def __init__(self, flag: str, message: str) -> None:
        super().__init__(message)
        self.flag = flag


@dataclass(frozen=True)
class Edge:
    """The energy reached ``energy_mj`` between ``after_s`` and ``before_s``."""

    after_s: float
    before_s: float
    energy_mj: float

    @cached_property
    def time_s(self) -> float:
        """Midpoint of the bracket around the moment."""
        return (self.after_s + self.before_s) / 2


class EnergySource(Protocol):
    """Energy since some moment, known at edges.

    Attributes:
        name: as in records: ``counter``, ``instant power`` or ``average power``.
        period_s: time between two edges; known after `probe`.
        memory_s: how far back a reading reaches: sooner than this after a change of power, it still
            includes power from before the change. Known after `probe`.
    """

    name: str
    period_s: float
    memory_s: float

    def probe(self) -> Edge:
        """Determine the source's traits, just after a load has begun, and return an edge.

        Raises:
            CounterError: the source has stopped or run backwards.
            DeviceError: it cannot be read.
        """

    def next_edge(self, periods: int) -> Edge:
        """The edge about ``periods`` periods after the last one.

        Raises:
            CounterError: the source has stopped or run backwards.
            DeviceError: it cannot be read.
        """

    def times_s(self, edges: Sequence[Edge], begin: int = 0) -> tuple[list[float], float]:
        """The best estimates of the times of successive ``edges`` since the last `probe`.

        Returns:
            Times in seconds, and the standard error of the time from ``edges[begin]`` to the last.
        """
