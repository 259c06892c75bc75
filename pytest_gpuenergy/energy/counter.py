"""NVML's energy counter, which moves in steps: when it moves, and by how much."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pytest_gpuenergy.devices.device import Device
from pytest_gpuenergy.energy.source import CounterError, Edge
from pytest_gpuenergy.errors import DeviceError

_PATIENCE_S = 0.6
_MARGIN_READS = 1.5
_PROBE_S = 0.2


class EnergyCounter:
    """Finds the moments at which a device's energy counter moves, with as few reads as it can.

    The first two edges are found by reading without a pause, and give the update period roughly;
    later ones are awaited, asleep, until just before they are due, and make it precise.
    """

    name = "counter"

    def __init__(self, device: Device) -> None:
        self._device = device
        self._clock = device.clock
        self._first: Edge | None = None
        self._last: Edge | None = None
        self._steps = 0
        self._read_s = 0.0
        self.period_s = 0.0
        self.memory_s = 0.0

    def probe(self) -> Edge:
        """Find edges until ``period_s`` is known well enough to count those left out later.

        Raises:
            CounterError: the counter does not move, or was reset.
            DeviceError: it cannot be read.
        """
        self._last = None
        self._first, self._steps = self._await_change(), 1
        edge = self._await_change()
        self.period_s = edge.time_s - self._first.time_s
        while self._steps * self.period_s < _PROBE_S:
            edge = self.next_edge(max(1, self._steps // 2))
        return edge

    def next_edge(self, periods: int) -> Edge:
        """The edge about ``periods`` update periods after the last one.

        Raises:
            CounterError: the counter does not move, or was reset.
            DeviceError: it cannot be read.
        """
        assert self._last is not None
        assert self._first is not None
        due_s = self._last.time_s + periods * self.period_s
        # Nothing may be read in between: what is read just before the edge must be the old value.
        pause_s = due_s - self._clock.now_s() - _MARGIN_READS * self._read_s - self.period_s / 20
        if pause_s > 0:
            self._clock.sleep_s(pause_s)
        before_s = self._last.time_s
        edge = self._await_change()
        self._steps += max(1, round((edge.time_s - before_s) / self.period_s))
        self.period_s = (edge.time_s - self._first.time_s) / self._steps
        return edge

    def _await_change(self) -> Edge:
        begin_s, old_mj = self._read()
        last = self._last
        if last is not None and old_mj < last.energy_mj:
            self._complain_of_reset()
        deadline_s = begin_s + _PATIENCE_S
        while True:
            read_s, new_mj = self._read()
            if new_mj < old_mj:
                self._complain_of_reset()
            if new_mj > old_mj:
                self._last = Edge(begin_s, read_s + self._read_s, new_mj)
                return self._last
            begin_s = read_s
            if read_s > deadline_s:
                raise CounterError(
                    "counter_stale",
                    f"The energy counter of {self._device.name} has not moved for "
                    f"{_PATIENCE_S:g} s.",
                )

    def _read(self) -> tuple[float, int]:
        """When the read began, and what it gave in mJ."""
        begin_s = self._clock.now_s()
        nvml = self._device.nvml
        try:
            energy_mj = int(nvml.nvmlDeviceGetTotalEnergyConsumption(self._device.handle))
        except nvml.NVMLError as error:
            raise DeviceError(
                f"The energy counter of {self._device.name} cannot be read ({error}): "
                "it takes a GPU of Volta or later and a working driver."
            ) from None
        self._read_s = self._clock.now_s() - begin_s
        return begin_s, energy_mj

    def _complain_of_reset(self) -> None:
        raise CounterError(
            "counter_reset", f"The energy counter of {self._device.name} ran backwards."
        )


def regular_times_s(edges: Sequence[Edge], period_s: float) -> tuple[list[float], float]:
    """The edges' times, made precise by the regularity of the counter's updates.

    A read takes milliseconds, so a single edge is known to within one or two; all edges lie on
    one line ``phase + k * period``, fitted here by least squares.

    Returns:
        The fitted times in seconds, and the standard error of a fitted time.  When the edges do
        not lie on a line to within their own uncertainty, their middles are returned as they are.
    """
    middles = np.array([edge.time_s for edge in edges])
    widths = np.array([edge.before_s - edge.after_s for edge in edges])
    # Step by step: over many steps, an error of the period would add up to a whole one.
    steps = np.rint(np.diff(middles) / period_s)
    index = np.concatenate(([0.0], np.cumsum(steps)))
    if len(edges) >= 3 and (steps >= 1).all():
        period, phase = np.polynomial.Polynomial.fit(index, middles, 1).convert().coef[::-1]
        fitted = phase + period * index
        residuals = middles - fitted
        if np.abs(residuals).max() <= widths.max():
            error = float(np.sqrt((residuals**2).sum() / (len(edges) - 2) / len(edges)))
            return fitted.tolist(), error
    return middles.tolist(), float(widths.mean()) / np.sqrt(12)
