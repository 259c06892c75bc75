"""What tells how warm a card is, and whether more heat would tell more about its power."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.energy.cooling import KnownCooling
from pytest_gpuenergy.energy.energy_source import Edge
from pytest_gpuenergy.energy.sensors import read_temperature
from pytest_gpuenergy.energy.steadiness import PowerHistory
from pytest_gpuenergy.energy.thermal import Settling, ThermalModel, ThermalSample
from pytest_gpuenergy.support import FormError, decode, encode, keep_for_later

_REMEMBERED_S = 15.0
"""The time from the first reading to the first write of the meter's memory, and the least time
between two writes. In 100 simulated sessions, the right kind of heat sink was then the most likely
one (docs/notes/temperature.md)."""

MIN_PAUSE_S = 5.0
"""The shortest pause after which a card has cooled down."""
_SETTLED = 0.003
"""The root mean square of the change of power still possible, as a fraction, at which the
preheating ends."""
_FIRST_ERROR, _LATER_ERROR = 0.007, 0.0045
"""The relative standard error of the settled power at which the first heat-up ends, and later ones:
intervals of 1.5 % and 1.0 %. Each further 0.1 % would take several seconds."""
_FLAT_ERROR, _FLAT_S, _FLAT = 0.006, 0.5, 0.0003
"""A later heat-up also ends if that error is no greater than the first of these, and has fallen by
less than the last within so many seconds. What is left then is how the card is cooled, which all
items of a session share, and which further seconds of one item hardly tell."""
_LOOK_S, _WORTHWHILE = 4.0, 0.002
"""Heating goes on for what a card still has to warm by, or if it has reduced the possible change of
power by at least this fraction within this time. An H200 of which nothing was known had 2.6 % left
after 3 s, 0.7 % after 12 s, 0.4 % after 20 s and 0.35 % after 30 s, while its temperature stayed
within a kelvin (docs/notes/temperature.md)."""
_NEWS_S = 1.0
"""The time after which a heat-up announces how much longer it may last, once."""

Announce = Callable[[float], object]
"""A function that is called once in a heat-up with the seconds that it may still last."""


class Preheat:
    """The time for which a card may be heated up beyond what each measurement needs.

    Args:
        longest_s: the total time; a pause of some seconds restores as many.
        announce: a function that shows the time left.
    """

    def __init__(self, longest_s: float, announce: Announce) -> None:
        self._longest_s = longest_s
        self._left_s = longest_s
        self._announce = announce
        self._since_s: float | None = None
        self._is_announced = False
        self._is_first = True
        self._recent: deque[tuple[float, float]] = deque()
        self._errors: deque[tuple[float, float]] = deque()

    def paused(self, pause_s: float) -> None:
        """Account for a pause before a run."""
        self._errors.clear()
        if pause_s > MIN_PAUSE_S:
            self._left_s = min(self._longest_s, self._left_s + pause_s)
            self._recent.clear()

    def goes_on(self, now_s: float, settling: Settling | None, *, is_awaited: bool = True) -> bool:
        """Return whether to heat the card further at ``now_s``; if not, call `end`.

        Only a heat-up that is awaited is announced.
        """
        if self._since_s is None:
            self._since_s, self._is_announced = now_s, False
        left_s = self._left_s - (now_s - self._since_s)
        if settling is None or left_s <= 0 or self._is_settled(now_s, settling):
            self.end(now_s)
            self._is_first = self._is_first and not is_awaited
            return False
        if is_awaited and not self._is_announced and now_s - self._since_s >= _NEWS_S:
            self._is_announced = True
            self._announce(left_s)
        return True

    def note(self, now_s: float, settling: Settling | None) -> None:
        """Note what is known in a run, also before it is asked whether to heat further."""
        if settling is not None:
            self._errors.append((now_s, settling.gain_error))

    def _is_flat(self, now_s: float, error: float) -> bool:
        """Return whether the error of the settled power has hardly fallen of late."""
        before = None
        while self._errors and now_s - self._errors[0][0] >= _FLAT_S:
            before = self._errors.popleft()[1]
        return before is not None and error <= _FLAT_ERROR and before - error < _FLAT

    def _is_settled(self, now_s: float, settling: Settling) -> bool:
        """Return whether more heat would hardly reduce the change of power that is possible."""
        while self._recent and now_s - self._recent[0][0] > _LOOK_S:
            before = self._recent.popleft()[1]
            is_worthwhile = before - settling.possible_gain >= _WORTHWHILE
            if abs(settling.gain) <= _SETTLED and not is_worthwhile:
                return True
        self._recent.append((now_s, settling.possible_gain))
        self.note(now_s, settling)
        is_flat = self._is_flat(now_s, settling.gain_error)
        if self._is_first:
            return settling.gain_error <= _FIRST_ERROR or settling.possible_gain <= _SETTLED
        if is_flat or settling.gain_error <= _LATER_ERROR:
            return True
        return settling.possible_gain <= _SETTLED

    def end(self, now_s: float) -> None:
        """Stop counting: the heat-up is over."""
        if self._since_s is not None:
            self._left_s = max(0.0, self._left_s - (now_s - self._since_s))
            self._since_s = None


class WarmthWatch:
    """Feeds a `ThermalModel` with the readings of one device.

    It has no result for a device that does not report its temperature or, between runs, its power.

    Args:
        device: the device whose temperature is read.
        history: the history of the device's power.
        memory: see `EnergyMeter`.

    Attributes:
        readings_c: the temperature at each edge of the run; None where it was not reported.
    """

    def __init__(self, device: Device, history: PowerHistory, memory: Path | None = None) -> None:
        self._device = device
        self._history = history
        self._memory = memory
        self._remembered_s = 0.0
        self._model: ThermalModel | None = None
        self._edges: list[Edge] = []
        self.readings_c: list[int | None] = []

    def begin(self, temperature_c: int | None) -> None:
        """Begin a run after a pause that leaves the device at ``temperature_c``."""
        self._edges, self.readings_c = [], []
        power_w = self._history.since_last_w()
        if power_w is None or temperature_c is None:
            self._model = None
            return
        pause = ThermalSample(self._device.clock.now_s(), power_w, temperature_c)
        if self._model is None:
            self._remembered_s = pause.time_s
            self._model = ThermalModel(pause, self._known_cooling(), self._device.name)
        elif power_w > 0:  # otherwise one load follows another before the counter is updated
            self._model.add_pause(pause)

    def note(self, edge: Edge) -> None:
        """Read the temperature at an edge of the run."""
        self._edges.append(edge)
        self.readings_c.append(read_temperature(self._device))

    def settling(self, trials: int, times_s: Sequence[float] = ()) -> Settling | None:
        """Return the mean temperature over the last trials and the settled one; None if unknown."""
        run = self._samples(times_s)
        return None if self._model is None or not run else self._model.settling(run, trials)

    def finish(self, times_s: Sequence[float]) -> None:
        """End the run, and add it to the model; see `_samples`."""
        if self._model is not None and (run := self._samples(times_s)):
            self._model.add_run(run)
            now_s = self._device.clock.now_s()
            if self._memory is not None and now_s - self._remembered_s >= _REMEMBERED_S:
                self._remembered_s = now_s
                keep_for_later(self._memory, encode(self._model.cooling))

    def _known_cooling(self) -> KnownCooling | None:
        """Return how the card was cooled in an earlier session; None if that is not known."""
        if self._memory is None:
            return None
        with contextlib.suppress(OSError, FormError):
            remembered = decode(self._memory.read_bytes(), KnownCooling)
            return remembered if remembered.is_sound else None
        return None

    def _samples(self, times_s: Sequence[float]) -> list[ThermalSample]:
        """Return the samples of the run so far; empty if a reading is missing.

        Args:
            times_s: precise times of the latest edges.
        """
        earlier = self._edges[: len(self._edges) - len(times_s)]
        times_s = [*(edge.time_s for edge in earlier), *times_s]
        samples = []
        moments = zip(times_s, self._edges, self.readings_c, strict=True)
        for (begin_s, before, _), (end_s, edge, reading_c) in pairwise(moments):
            seconds, joules = end_s - begin_s, (edge.energy_mj - before.energy_mj) / 1e3
            if reading_c is None or seconds <= 0 or joules <= 0:
                return []
            samples.append(ThermalSample(end_s, joules / seconds, reading_c))
        return samples
