"""Whether a card has settled: the slope of its power, and its power just before."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.energy.sensors import power_by_samples_w

SIGNIFICANT = 2.0
"""A slope of more than this many standard errors counts as real."""

SETTLING_GAIN = 0.012
SETTLING_S = 5.0
"""How the effect of a card's former power decays: with t since the load began, it is
``SETTLING_GAIN * |P_before / P - 1| * exp(-t / SETTLING_S)`` of the power.

On one H200, a kernel of 129 W after 14 s at 316 W drew 1.2 % too much about 1.8 s after its start;
one of 419 W after idling drew 0.35 % too little at 1.3 s and 0.23 % too little at 2 s. The curve
passes through the first of these and lies above the others.
"""


_HISTORY_S = 10.0
_SAMPLES_S = 2.4  # what the card's own buffer of samples holds


@dataclass(frozen=True)
class Slope:
    """Change of power per second, as a fraction of the power, with its standard error."""

    per_s: float
    error_per_s: float

    def exceeds(self, limit_per_s: float) -> bool:
        """Whether the power changes by more than ``limit_per_s``, and significantly so."""
        least = max(limit_per_s, SIGNIFICANT * self.error_per_s)
        return abs(self.per_s) > least


def power_slope(times_s: Sequence[float], energies_mj: Sequence[float]) -> Slope:
    """The slope of power over a span, from the curvature of the energy.

    A parabola is fitted by least squares to the energy at the edges. Comparing neighbouring powers
    would be less precise: nearly all of their scatter is error in the times of the edges, which a
    fit through all edges averages out.

    Raises:
        ValueError: there are fewer than four edges, or the energy did not increase.
    """
    if len(times_s) < 4 or energies_mj[-1] <= energies_mj[0]:
        raise ValueError("a slope of power needs four edges and energy between them")
    time_s = np.asarray(times_s, dtype=np.float64) - np.mean(times_s)
    energy_mj = np.asarray(energies_mj, dtype=np.float64) - energies_mj[0]
    design = np.vander(time_s, 3)
    coefficients, *_ = np.linalg.lstsq(design, energy_mj, rcond=None)
    residuals = energy_mj - design @ coefficients
    variance = float(residuals @ residuals) / max(1, len(time_s) - 3)
    error = math.sqrt(variance * np.linalg.inv(design.T @ design)[0, 0])
    power_mw = float(coefficients[1])
    return Slope(2 * float(coefficients[0]) / power_mw, 2 * error / power_mw)


class PowerHistory:
    """The mean power over the last seconds, whatever ran then.

    It covers about ten seconds if the energy counter was noted that long ago; otherwise, or without
    a counter, the time span of the card's buffer of power samples.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._marks: deque[tuple[float, int]] = deque()

    def note(self) -> None:
        """Remember the counter's present value."""
        if (mark := self._read()) is not None:
            self._marks.append(mark)

    def mean_w(self) -> float | None:
        """The mean power until now, in W; None if the card does not report it."""
        now = self._read() if self._marks else None
        if now is not None:
            now_s, energy_mj = now
            while len(self._marks) > 1 and now_s - self._marks[1][0] >= _HISTORY_S:
                self._marks.popleft()
            begin_s, begin_mj = self._marks[0]
            if now_s - begin_s >= _SAMPLES_S and energy_mj >= begin_mj:
                return (energy_mj - begin_mj) / 1e3 / (now_s - begin_s)
        return power_by_samples_w(self._device, _SAMPLES_S)

    def since_last_w(self) -> float | None:
        """The mean power since the last `note`; without one, as `mean_w`."""
        now = self._read() if self._marks else None
        if now is None or now[0] <= self._marks[-1][0] or now[1] < self._marks[-1][1]:
            return self.mean_w()
        begin_s, begin_mj = self._marks[-1]
        return (now[1] - begin_mj) / 1e3 / (now[0] - begin_s)

    def _read(self) -> tuple[float, int] | None:
        nvml = self._device.nvml
        try:
            energy_mj = int(nvml.nvmlDeviceGetTotalEnergyConsumption(self._device.handle))
        except nvml.NVMLError:
            return None
        return self._device.clock.now_s(), energy_mj


def unsettled(before_w: float | None, power_w: float, since_s: float) -> float:
    """How far the power may still be, as a fraction, from the value it settles at.

    Args:
        before_w: mean power over the seconds before the load began; None if unknown, for which the
            result is 0.
        power_w: under the load.
        since_s: time since the load began.
    """
    step = 0.0 if before_w is None else abs(before_w / power_w - 1)
    return SETTLING_GAIN * step * math.exp(-since_s / SETTLING_S)
