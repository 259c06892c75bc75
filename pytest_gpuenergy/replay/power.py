"""Samples the card's power while a program is profiled, and puts it on the profiler's clock."""

from __future__ import annotations

import csv
import io
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from msgspec import Struct

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.energy import CardSamples, PowerSample, read_regularly
from pytest_gpuenergy.support import (
    DeviceError,
    GpuEnergyError,
    InputError,
    csv_text,
    read_bytes,
    write_atomically,
)

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

    The host's clock is read within an annotation of the trace, so the profiler's time of each read
    lies between the times at which the annotation began and ended. As long as the clocks run at a
    constant ratio, the profiler's time is a straight line over the host's. The lines that pass
    between the two times of each read form a convex polygon in the plane of the profiler's times at
    the first and at the last read.

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


POWER_CSV = "power.csv"
WINDOW_US = 26_000.0
"""The longest window of a sample, which is a mean over 20 to 25 ms on an H200; 1 ms is added for
the error of its time."""
SHORTEST_US = 100_000.0
"""The shortest phase that gets a mean. A shorter one has hardly a sample left, because those within
a window of either end do not count."""

_COLUMNS = ("timestamp_us", "power_w")
_LARGEST_BYTES = 1 << 24
_LONGEST_US = 1e17
_LARGEST_W = 1e6
_PATIENCE_S = 2.0
_STEP_S = 0.005
_MAX_LAG_US = 1e6
_MAX_LEAD_US = 1e3

Span = tuple[float, float]


class PowerAlignment(Struct, frozen=True):
    """The mapping of the card's power samples to the profiler's clock.

    Attributes:
        samples: The number of samples.
        brackets: The number of reads of the host's clock within the trace.
        offset_us: The host's clock minus the profiler's, at the first read.
        drift_ppm: How much faster the host's clock runs, in parts per million.
        error_us: The largest error of the offset. The samples may have errors of their own.
        stamp_lag_us: The largest lag of the samples' stamps behind the host's clock.
    """

    samples: int
    brackets: int
    offset_us: float
    drift_ppm: float
    error_us: float
    stamp_lag_us: float

    @property
    def sentence(self) -> str:
        """The quality of the alignment, as a line without a period."""
        return (
            f"power: {self.samples} samples, whose clock is aligned with the profiler's within "
            f"±{self.error_us:.1f} µs; their stamps lag by no more than "
            f"{max(0.0, self.stamp_lag_us) / 1e3:.1f} ms"
        )


@dataclass(frozen=True)
class PowerCurve:
    """Power samples on the profiler's clock.

    Attributes:
        times_us: The time of each sample, ascending.
        powers_w: The power of each sample.
    """

    times_us: Sequence[float]
    powers_w: Sequence[float]

    def within(self, spans: Iterable[Span]) -> list[float]:
        """Return the powers of the samples whose window lies within one of the spans.

        A sample's time may be anywhere in its window, so a whole window is kept from either end.

        Args:
            spans: Pairs of begin and end; no two overlap.
        """
        found: list[float] = []
        for begin_us, end_us in spans:
            first = bisect_left(self.times_us, begin_us + WINDOW_US)
            last = bisect_right(self.times_us, end_us - WINDOW_US)
            found += self.powers_w[first:last]
        return found


def write_power(curve: PowerCurve, folder: Path) -> None:
    """Write ``power.csv``.

    Raises:
        OSError: it cannot be written.
    """
    pairs = zip(curve.times_us, curve.powers_w, strict=True)
    rows = [[round(us, 3), round(power_w, 3)] for us, power_w in pairs]
    write_atomically(folder / POWER_CSV, csv_text([_COLUMNS, *rows]))


def read_power(path: Path) -> PowerCurve:
    """Read a file of `write_power`.

    Raises:
        InputError: The file is damaged.
    """
    content = read_bytes(path, "power curve", _LARGEST_BYTES)
    rows = csv.reader(io.StringIO(content.decode(errors="replace"), newline=""))
    times_us: list[float] = []
    powers_w: list[float] = []
    try:
        if tuple(next(rows, ())) != _COLUMNS:
            raise ValueError(f"the first line is not {','.join(_COLUMNS)}")
        for row in rows:
            at_us, power_w = map(float, row)
            if not (abs(at_us) <= _LONGEST_US and 0 <= power_w <= _LARGEST_W):
                raise ValueError("a number is out of range")
            times_us.append(at_us)
            powers_w.append(power_w)
    except (ValueError, csv.Error) as error:
        raise InputError(
            f"Line {rows.line_num} of {path} is not a time and a power ({error}): delete the file, "
            "or profile again."
        ) from None
    if any(later <= earlier for earlier, later in pairwise(times_us)):
        raise InputError(f"The times in {path} do not ascend: delete the file, or profile again.")
    return PowerCurve(times_us, powers_w)


class PowerSampler:
    """Collects the power samples that a card takes by itself; a context manager.

    A profile is of use without power samples, so an error ends the sampling only.

    Args:
        device: The card, claimed by the caller.
        host_ns: The clock that the card's driver stamps samples with, in nanoseconds.

    Attributes:
        samples: The samples so far.
        stamp_lag_us: The largest lag of their stamps behind that clock. A sample is stamped before
            it is read, so the smallest age of a sample that was read is such a bound.
        problem: The sentence that says why sampling ended early; None if it did not.
    """

    def __init__(self, device: Device, host_ns: Callable[[], int] = time.time_ns) -> None:
        self._device = device
        self._host_ns = host_ns
        self._card = CardSamples(device)
        self._lock = Lock()
        self._reading = ExitStack()
        self.samples: list[PowerSample] = []
        self.stamp_lag_us = float("inf")
        self.problem: str | None = None

    def __enter__(self) -> PowerSampler:
        """Begin with the samples that the card already has."""
        self.collect()
        if not self.samples and self.problem is None:
            self.problem = f"{self._device.name} keeps no samples of its power."
        self._reading.enter_context(read_regularly(self._device, self.collect))
        return self

    def collect(self) -> None:
        """Take the samples since the last call, unless there is a `problem`."""
        with self._lock:
            if self.problem is not None:
                return
            try:
                found = self._card.new()
            except DeviceError as error:
                self.problem = str(error)
                return
            now_us = self._host_ns() / 1e3
            if found:
                self.samples += found
                self.stamp_lag_us = min(self.stamp_lag_us, now_us - found[-1].stamp_us)

    def finish(self, until_ns: int) -> None:
        """Wait, at most two seconds, for the samples up to a time of the host's clock."""
        clock = self._device.clock
        begin_s = clock.now_s()
        self.collect()
        while self.problem is None and 1000 * self.samples[-1].stamp_us < until_ns:
            if clock.now_s() - begin_s > _PATIENCE_S:
                self.problem = f"{self._device.name} has taken no more samples of its power."
                return
            clock.sleep_s(_STEP_S)
            self.collect()

    def placed(
        self, reads: Sequence[ClockRead], spans: Sequence[Span]
    ) -> tuple[PowerAlignment, PowerCurve]:
        """Return how well the samples are aligned, and the samples on the profiler's clock.

        Args:
            reads: The reads of the host's clock, in their order.
            spans: Begin and end of the annotations around them, in the trace.

        Raises:
            ClockError: There are no samples, or the clocks cannot be aligned.
        """
        if self.problem is not None:
            raise ClockError(self.problem)
        if len(spans) != len(reads):
            raise ClockError(
                f"The trace has {len(spans)} of the {len(reads)} reads of the host's clock."
            )
        if not -_MAX_LEAD_US <= self.stamp_lag_us <= _MAX_LAG_US:
            raise ClockError(
                f"The power samples of {self._device.name} are not stamped by the host's clock: "
                f"their stamps differ from it by {abs(self.stamp_lag_us) / 1e3:.0f} ms."
            )
        pairs = zip(reads, spans, strict=True)
        alignment = align([Bracket(read, *span) for read, span in pairs])
        inside = [
            (alignment.trace_us(1000 * sample.stamp_us), sample.power_w)
            for sample in self.samples
            if alignment.covers(1000 * sample.stamp_us)
        ]
        curve = PowerCurve([us for us, _ in inside], [power_w for _, power_w in inside])
        if not inside:
            raise ClockError(f"{self._device.name} took no sample of its power meanwhile.")
        found = PowerAlignment(
            samples=len(inside),
            brackets=len(reads),
            offset_us=alignment.offset_us,
            drift_ppm=alignment.drift_ppm,
            error_us=alignment.error_us,
            stamp_lag_us=self.stamp_lag_us,
        )
        return found, curve

    def __exit__(self, *_: object) -> None:
        """End the sampling."""
        self._reading.close()
