"""The card's power while a program was profiled: on the profiler's clock, and over its phases."""

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
from typing import TYPE_CHECKING

from msgspec import Struct

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.energy import CardSamples, PowerSample, read_regularly
from pytest_gpuenergy.replay.clocks import Alignment, Bracket, ClockError, ClockRead, align
from pytest_gpuenergy.support import DeviceError, InputError, csv_text, read_bytes, write_atomically

if TYPE_CHECKING:
    from pytest_gpuenergy.energy import PowerSample

POWER_CSV = "power.csv"
WINDOW_US = 26_000.0
"""A sample is the mean over 20 to 25 ms on an H200; and its time may be wrong by up to 1 ms."""
SHORTEST_US = 100_000.0
"""A shorter phase gets no mean: without a window at each end, hardly a sample would be left."""

_COLUMNS = ("timestamp_us", "power_w")
_LARGEST_BYTES = 1 << 24
_LONGEST_US = 1e17
_LARGEST_W = 1e6

Span = tuple[float, float]


class PowerAlignment(Struct, frozen=True):
    """How the card's power samples were put on the profiler's clock.

    Attributes:
        samples: how many there are.
        brackets: reads of the host's clock that the trace encloses.
        offset_us: the host's clock minus the profiler's, at the first of them.
        drift_ppm: how much faster the host's clock runs, in millionths.
        error_us: what the offset may be wrong by. It says nothing about the samples themselves.
        stamp_lag_us: the stamps of samples lag behind the host's clock by no more than this.
    """

    samples: int
    brackets: int
    offset_us: float
    drift_ppm: float
    error_us: float
    stamp_lag_us: float

    @property
    def sentence(self) -> str:
        """How good the alignment is, as a line without a period."""
        return (
            f"power: {self.samples} samples, whose clock is aligned with the profiler's within "
            f"±{self.error_us:.1f} µs; their stamps lag by no more than "
            f"{max(0.0, self.stamp_lag_us) / 1e3:.1f} ms"
        )


@dataclass(frozen=True)
class PowerCurve:
    """Power samples on the profiler's clock.

    Attributes:
        times_us: ascending.
        powers_w: as many.
    """

    times_us: Sequence[float]
    powers_w: Sequence[float]

    @classmethod
    def placed(cls, samples: Iterable[PowerSample], alignment: Alignment) -> PowerCurve:
        """Those samples for whose time the alignment holds."""
        inside = [one for one in samples if alignment.covers(1000 * one.stamp_us)]
        times_us = [alignment.trace_us(1000 * one.stamp_us) for one in inside]
        return cls(times_us, [one.power_w for one in inside])

    def within(self, spans: Iterable[Span]) -> list[float]:
        """The powers of samples whose window lies in one of the spans, wherever its time is in it.

        Args:
            spans: begin and end; no two overlap.
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
    """The curve in a file of `write_power`.

    Raises:
        InputError: it is none.
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


_PATIENCE_S = 2.0
_STEP_S = 0.005
_MOST_LAG_US = 1e6
_MOST_LEAD_US = 1e3


class PowerSampler:
    """Collects the power samples that a card takes by itself; a context manager.

    Nothing that goes wrong with them is worth a profile, so it is noted.

    Args:
        device: the card, claimed by the caller.
        host_ns: the clock that the card's driver stamps samples with, in nanoseconds.

    Attributes:
        samples: so far.
        stamp_lag_us: their stamps lag behind that clock by no more than this: a sample has its
            stamp before it is read.
        problem: a sentence that says why there are no more of them, if so.
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
        """Begin with the samples that the card has."""
        self.collect()
        if not self.samples and self.problem is None:
            self.problem = f"{self._device.name} keeps no samples of its power."
        self._reading.enter_context(read_regularly(self._device, self.collect))
        return self

    def collect(self) -> None:
        """Take the samples since the last call, unless there was a `problem`."""
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
        """Wait for the samples up to a time of the host's clock; for two seconds at most."""
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
        """The samples on the profiler's clock, and how well they are aligned.

        Args:
            reads: of the host's clock, in their order.
            spans: of the annotations that enclose them, in the trace.

        Raises:
            ClockError: there are no samples, or the clocks cannot be aligned.
        """
        if self.problem is not None:
            raise ClockError(self.problem)
        if len(spans) != len(reads):
            raise ClockError(
                f"The trace has {len(spans)} of the {len(reads)} reads of the host's clock."
            )
        if not -_MOST_LEAD_US <= self.stamp_lag_us <= _MOST_LAG_US:
            raise ClockError(
                f"The power samples of {self._device.name} are not stamped by the host's clock: "
                f"their stamps differ from it by {abs(self.stamp_lag_us) / 1e3:.0f} ms."
            )
        pairs = zip(reads, spans, strict=True)
        alignment = align([Bracket(read, *span) for read, span in pairs])
        curve = PowerCurve.placed(self.samples, alignment)
        if not curve.times_us:
            raise ClockError(f"{self._device.name} took no sample of its power meanwhile.")
        found = PowerAlignment(
            samples=len(curve.times_us),
            brackets=len(reads),
            offset_us=alignment.offset_us,
            drift_ppm=alignment.drift_ppm,
            error_us=alignment.error_us,
            stamp_lag_us=self.stamp_lag_us,
        )
        return found, curve

    def __exit__(self, *_: object) -> None:
        """Read no more."""
        self._reading.close()
