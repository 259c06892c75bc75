"""Aligns the host's clock with the profiler's, from reads within annotations of the trace.

The host's clock is read within an annotation. The trace has the times on the profiler's clock at
which the annotation began and ended, so the read was made between them. As long as the clocks run
at a constant ratio, the profiler's time is a straight line over the host's. The possible lines are
those that pass between the two times of each read. They form a convex polygon in the plane of the
profiler's times at the first and at the last read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from pytest_gpuenergy.support import GpuEnergyError

CLOCK = "gpuenergy clock"
"""The name of the annotations in which the host's clock is read."""
MAX_ERROR_US = 1000.0
"""The largest error of an alignment that is of use, because power samples are 20 ms apart."""

_MAX_DRIFT = 1e-3
"""The largest relative difference in rate; Linux corrects its clock by at most half of that."""
_ROUNDING_US = 0.01
"""The largest rounding error: a trace has nanoseconds, and a float of months about the same."""

Vertex = tuple[float, float]


class ClockError(GpuEnergyError):
    """The two clocks cannot be aligned."""


class ClockRead(NamedTuple):
    """The host's clocks at one moment: the time since 1970, and a clock that nobody sets."""

    host_ns: int
    monotonic_ns: int


class Bracket(NamedTuple):
    """A read of the host's clock, and the times on the profiler's clock around it."""

    read: ClockRead
    begin_us: float
    end_us: float


@dataclass(frozen=True)
class Alignment:
    """The profiler's time as a straight line over the host's.

    Attributes:
        first_ns: The host's time at the first read.
        last_ns: The host's time at the last read.
        first_us: The profiler's time at the first read.
        last_us: The profiler's time at the last read.
        error_us: The largest distance of the true time from the line, between these reads.
    """

    first_ns: int
    last_ns: int
    first_us: float
    last_us: float
    error_us: float

    @property
    def offset_us(self) -> float:
        """The host's time minus the profiler's, at the first read."""
        return self.first_ns / 1e3 - self.first_us

    @property
    def drift_ppm(self) -> float:
        """How much faster the host's clock runs than the profiler's, in parts per million."""
        return 1e6 * ((self.last_ns - self.first_ns) / 1e3 / (self.last_us - self.first_us) - 1)

    def covers(self, host_ns: int) -> bool:
        """Return whether a time of the host lies between the first and the last read."""
        return self.first_ns <= host_ns <= self.last_ns

    def trace_us(self, host_ns: int) -> float:
        """Return the profiler's time at a time of the host."""
        share = (host_ns - self.first_ns) / (self.last_ns - self.first_ns)
        return self.first_us + share * (self.last_us - self.first_us)


def align(brackets: Sequence[Bracket]) -> Alignment:
    """Return the alignment with the smallest error.

    The error includes the amount by which the host's clock was set between the reads.

    Args:
        brackets: The reads in their order, some at the beginning and some at the end.

    Raises:
        ClockError: There are too few reads, they contradict each other, or the error is too large.
    """
    if len(brackets) < 2 or brackets[-1].read.host_ns <= brackets[0].read.host_ns:
        raise ClockError("The host's clock has not been read at a beginning and at an end.")
    first_ns, last_ns = brackets[0].read.host_ns, brackets[-1].read.host_ns
    base_us = brackets[0].begin_us
    shifted = [
        Bracket(read, begin_us - base_us - _ROUNDING_US, end_us - base_us + _ROUNDING_US)
        for read, begin_us, end_us in brackets
    ]
    polygon = _possible_times(shifted, (last_ns - first_ns) / 1e3)
    if not polygon:
        raise ClockError(
            "The reads of the host's clock contradict the times of the trace: a clock was set "
            "meanwhile."
        )
    ends_us = [(min(values), max(values)) for values in zip(*polygon, strict=True)]
    # The width is a convex function of the host's time, so it is largest at one of the ends.
    error_us = max((high - low) / 2 for low, high in ends_us)
    # An interrupt between reading the two clocks makes their difference smaller, so the largest
    # difference in each half is nearest to the truth.
    ahead_ns = [bracket.read.host_ns - bracket.read.monotonic_ns for bracket in brackets]
    half = len(ahead_ns) // 2
    error_us += abs(max(ahead_ns[half:]) - max(ahead_ns[:half])) / 1e3
    if error_us > MAX_ERROR_US:
        raise ClockError(
            f"The host's clock and the profiler's can be aligned within ±{error_us:.0f} µs only: "
            "one was set meanwhile, or the machine was too busy."
        )
    first_us, last_us = (base_us + (low + high) / 2 for low, high in ends_us)
    return Alignment(first_ns, last_ns, first_us, last_us, error_us)


def _possible_times(brackets: Sequence[Bracket], span_us: float) -> list[Vertex]:
    """Return the polygon of possible times at the first and last read; empty if there are none."""
    (first, *_, last), begin_ns = brackets, brackets[0].read.host_ns
    polygon = [
        (first.begin_us, last.begin_us),
        (first.end_us, last.begin_us),
        (first.end_us, last.end_us),
        (first.begin_us, last.end_us),
    ]
    slack_us = _MAX_DRIFT * span_us
    polygon = _clipped(polygon, -1.0, 1.0, slack_us - span_us)
    polygon = _clipped(polygon, 1.0, -1.0, slack_us + span_us)
    for bracket in brackets[1:-1]:
        share = (bracket.read.host_ns - begin_ns) / 1e3 / span_us
        polygon = _clipped(polygon, 1 - share, share, -bracket.begin_us)
        polygon = _clipped(polygon, share - 1, -share, bracket.end_us)
    return polygon


def _clipped(polygon: Sequence[Vertex], a: float, b: float, c: float) -> list[Vertex]:
    """Return the part of a convex polygon where ``a * x + b * y + c`` is not negative."""
    found: list[Vertex] = []
    for (x, y), (next_x, next_y) in pairwise([*polygon, *polygon[:1]]):
        here, there = a * x + b * y + c, a * next_x + b * next_y + c
        if here >= 0:
            found.append((x, y))
        if here * there < 0:
            share = here / (here - there)
            found.append((x + share * (next_x - x), y + share * (next_y - y)))
    return found
