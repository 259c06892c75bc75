"""Collects a card's power samples while a program is profiled, and places them in the trace."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from threading import Lock

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.energy import CardSamples, PowerSample, read_regularly
from pytest_gpuenergy.replay.clocks import Bracket, ClockError, ClockRead, align
from pytest_gpuenergy.replay.power import PowerAlignment, PowerCurve, Span
from pytest_gpuenergy.support import DeviceError

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
