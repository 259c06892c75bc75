"""The host's clock on that of the profiler, from reads that annotations of the trace enclose.

Within an annotation, the host's clock is read. The trace says when the annotation began and ended
on the profiler's clock, and so between which two times the read was made. While the rate of one
clock by the other does not change, the profiler's time is a straight line over the host's; every
line that passes between the two times of each read may be the true one, and no other. They form a
convex polygon in the plane of the profiler's times at the first and at the last read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from pytest_gpuenergy.support import GpuEnergyError

CLOCK = "gpuenergy clock"
"""The name of the annotations."""
MOST_ERROR_US = 1000.0
"""Clocks that are less certain than this are no use to samples 20 ms apart."""

_MOST_DRIFT = 1e-3
"""Relative difference in rate; Linux corrects its clock by half of that at most."""
_ROUNDING_US = 0.01
"""A trace rounds its times to nanoseconds, and 64-bit floats of months to about as much."""

Vertex = tuple[float, float]


class ClockError(GpuEnergyError):
    """The two clocks cannot be aligned."""


class ClockRead(NamedTuple):
    """The host's clocks at one moment: that since 1970, and one that nobody sets."""

    host_ns: int
    monotonic_ns: int


class Bracket(NamedTuple):
    """A read of the host's clock, and between which times of the profiler's it was made."""

    read: ClockRead
    begin_us: float
    end_us: float


@dataclass(frozen=True)
class Alignment:
    """The profiler's time as a straight line over the host's.

    Attributes:
        first_ns, last_ns: the host's times of the first and the last read.
        first_us, last_us: the profiler's times then.
        error_us: the profiler's time is no further from the line than this, from the first to the
            last read.
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
        """How much faster the host's clock runs, in millionths."""
        return 1e6 * ((self.last_ns - self.first_ns) / 1e3 / (self.last_us - self.first_us) - 1)

    def covers(self, host_ns: int) -> bool:
        """Whether a time of the host lies between the first and the last read."""
        return self.first_ns <= host_ns <= self.last_ns

    def trace_us(self, host_ns: int) -> float:
        """The profiler's time at a time of the host."""
        share = (host_ns - self.first_ns) / (self.last_ns - self.first_ns)
        return self.first_us + share * (self.last_us - self.first_us)


def align(brackets: Sequence[Bracket]) -> Alignment:
    """The alignment that leaves the smallest error.

    The error includes by how much the host's clock was set between the reads.

    Args:
        brackets: in their order, some at the beginning and some at the end.

    Raises:
        ClockError: there are too few, they contradict each other, or too much stays uncertain.
    """
    if len(brackets) < 2 or brackets[-1].read.host_ns <= brackets[0].read.host_ns:
        raise ClockError("The host's clock has not been read at a beginning and at an end.")
    first_ns, last_ns = brackets[0].read.host_ns, brackets[-1].read.host_ns
    base_us = brackets[0].begin_us
    low_us, high_us = base_us + _ROUNDING_US, base_us - _ROUNDING_US
    shifted = [Bracket(one.read, one.begin_us - low_us, one.end_us - high_us) for one in brackets]
    polygon = _possible(shifted, (last_ns - first_ns) / 1e3)
    if not polygon:
        raise ClockError(
            "The reads of the host's clock contradict the times of the trace: a clock was set "
            "meanwhile."
        )
    ends_us = [_ends(values) for values in zip(*polygon, strict=True)]
    # The width over the host's time is convex: it is largest at one of the ends.
    error_us = max((high - low) / 2 for low, high in ends_us) + _set_by_us(brackets)
    if error_us > MOST_ERROR_US:
        raise ClockError(
            f"The host's clock and the profiler's can be aligned within ±{error_us:.0f} µs only: "
            "one was set meanwhile, or the machine was too busy."
        )
    first_us, last_us = (base_us + (low + high) / 2 for low, high in ends_us)
    return Alignment(first_ns, last_ns, first_us, last_us, error_us)


def _ends(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)


def _possible(brackets: Sequence[Bracket], span_us: float) -> list[Vertex]:
    """The polygon of possible times at the first and the last read; empty if there is none."""
    (first, *_, last), begin_ns = brackets, brackets[0].read.host_ns
    polygon = [
        (first.begin_us, last.begin_us),
        (first.end_us, last.begin_us),
        (first.end_us, last.end_us),
        (first.begin_us, last.end_us),
    ]
    slack_us = _MOST_DRIFT * span_us
    polygon = _clipped(polygon, lambda p, q: q - p - span_us + slack_us)
    polygon = _clipped(polygon, lambda p, q: p - q + span_us + slack_us)
    for one in brackets[1:-1]:
        share = (one.read.host_ns - begin_ns) / 1e3 / span_us
        for sign, edge_us in ((1.0, one.begin_us), (-1.0, one.end_us)):

            def inside(
                p: float, q: float, share: float = share, sign: float = sign, at: float = edge_us
            ) -> float:
                return sign * ((1 - share) * p + share * q - at)

            polygon = _clipped(polygon, inside)
    return polygon


def _clipped(polygon: Sequence[Vertex], inside: Callable[[float, float], float]) -> list[Vertex]:
    """The part of a convex polygon where a linear function is not negative."""
    found: list[Vertex] = []
    for one, following in pairwise([*polygon, *polygon[:1]]):
        here, there = inside(*one), inside(*following)
        if here >= 0:
            found.append(one)
        if here * there < 0:
            share = here / (here - there)
            found.append(
                (
                    one[0] + share * (following[0] - one[0]),
                    one[1] + share * (following[1] - one[1]),
                )
            )
    return found


def _set_by_us(brackets: Sequence[Bracket]) -> float:
    """By how much the host's clock was set between the first and the second half of the reads.

    What interrupts the host between reading two clocks makes their difference smaller, so the
    largest is nearest to the truth.
    """
    ahead_ns = [one.read.host_ns - one.read.monotonic_ns for one in brackets]
    half = len(ahead_ns) // 2
    return abs(max(ahead_ns[half:]) - max(ahead_ns[:half])) / 1e3
