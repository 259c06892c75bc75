"""Follows the temperature of a device through all runs of kernels and the pauses between them."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.energy.drift import PowerHistory
from pytest_gpuenergy.energy.sensors import read_temperature
from pytest_gpuenergy.energy.source import Edge
from pytest_gpuenergy.energy.thermal import Sample, Settling, ThermalModel


class WarmthWatch:
    """Feeds a `ThermalModel` with the readings of one device.

    It says nothing about a device that does not report its temperature or, between runs, its power.

    Args:
        device: whose temperature is read.
        history: of its power.
    """

    def __init__(self, device: Device, history: PowerHistory) -> None:
        self._device = device
        self._history = history
        self._model: ThermalModel | None = None
        self._edges: list[Edge] = []
        self._readings_c: list[int | None] = []
        self._so_far: list[Sample] | None = []

    def begin(self, temperature_c: int | None) -> None:
        """Begin a run after a pause that leaves the device at ``temperature_c``."""
        self._edges, self._readings_c, self._so_far = [], [], []
        power_w = self._history.since_last_w()
        if power_w is None or temperature_c is None:
            self._model = None
            return
        pause = Sample(self._device.clock.now_s(), power_w, temperature_c)
        if self._model is None:
            self._model = ThermalModel(pause)
        else:
            self._model.add_pause(pause)

    def note(self, edge: Edge) -> None:
        """Read the temperature at an edge of the run.

        Raises:
            DeviceError: the card does not respond.
        """
        self._edges.append(edge)
        self._readings_c.append(read_temperature(self._device))
        if self._so_far is not None and len(self._edges) > 1:
            before = self._edges[-2]
            sample = self._sample(len(self._edges) - 1, before.time_s, edge.time_s)
            if sample is None:
                self._so_far = None
            else:
                self._so_far.append(sample)

    def readings_c(self, trials: int) -> list[int | None]:
        """The temperatures at the ends of the last so many intervals between edges."""
        return self._readings_c[-trials:]

    def settling(self, trials: int, times_s: Sequence[float] = ()) -> Settling | None:
        """Where the temperature is and will be; None if it is not known.

        Args:
            trials: the number of intervals between edges, at the end, that are trials.
            times_s: of the edges, if they are known better than each edge knows its own.
        """
        run = self._samples(times_s)
        return None if self._model is None or not run else self._model.settling(run, trials)

    def finish(self, times_s: Sequence[float]) -> None:
        """End the run, and learn from it."""
        if self._model is not None and (run := self._samples(times_s)):
            self._model.add_run(run)

    def _samples(self, times_s: Sequence[float]) -> Sequence[Sample]:
        """The run so far; empty if a part of it is not known."""
        if not times_s:  # as after each edge
            return self._so_far or []
        samples = []
        for number in range(1, len(self._edges)):
            sample = self._sample(number, times_s[number - 1], times_s[number])
            if sample is None:
                return []
            samples.append(sample)
        return samples

    def _sample(self, number: int, begin_s: float, end_s: float) -> Sample | None:
        """What was read at edge ``number``, and since the one before it."""
        seconds = end_s - begin_s
        joules = (self._edges[number].energy_mj - self._edges[number - 1].energy_mj) / 1e3
        reading_c = self._readings_c[number]
        if reading_c is None or seconds <= 0 or joules <= 0:
            return None
        return Sample(end_s, joules / seconds, reading_c)
