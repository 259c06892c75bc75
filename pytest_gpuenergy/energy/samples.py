"""Energy as the integral of a power reading, for cards without an energy counter.

A reading is the mean over a window before the sensor's last update. The window and the update
period differ from GPU to GPU; they are determined once, from how the reading follows a load that
has just begun: see Z. Yang, K. Adamek, W. Armour, "Accurate and Convenient Energy Measurements for
GPUs" (SC24).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import NamedTuple

from pytest_gpuenergy.devices import Device, Gpu, unavailable_errors
from pytest_gpuenergy.energy.counter import EnergyCounter
from pytest_gpuenergy.energy.energy_source import CounterError, Edge, EnergySource
from pytest_gpuenergy.support import DeviceError

READINGS_PER_PERIOD = 2
"""The number of readings in an update period: more than one, so that no update is missed."""

_PROBE_S = 2.5
"""The time for which the reading is watched to determine the period and the window."""
_PROBE_STEP_S = 0.002
_RISE_S = 1.0
"""The time in which a reading begins to follow a load, besides the sensor's averaging window."""
_SLOWEST_PERIOD_S = 0.1
"""The longest period of the GPUs in the study above."""
_LONGEST_WINDOW_S = 1.0
_MIN_STEP = 0.1
"""The smallest relative change of power that reveals the window."""

PowerReading = Callable[[Device], float | None]
"""A function that returns the power in mW, or None if the card does not report it."""


class SensorTraits(NamedTuple):
    """The traits of a power sensor, which every ``period_s`` shows the mean over ``window_s``."""

    period_s: float
    window_s: float


class PowerSamples:
    """Integrates a power reading over time by the trapezoidal rule.

    Args:
        device: the card.
        name: the name of the reading, for records.
        read: the function that reads the power.
    """

    def __init__(self, device: Device, name: str, read: PowerReading) -> None:
        self._device = device
        self._clock = device.clock
        self._read = read
        self._probed = False
        self._last = (0.0, 0.0)
        self._changed_s, self._has_changed = 0.0, False
        self._energy_mj = 0.0
        self.name = name
        self.period_s = _SLOWEST_PERIOD_S
        self.memory_s = _LONGEST_WINDOW_S

    def probe(self) -> Edge:
        """Return an edge at the present moment; the first call first watches the reading for 2.5 s.

        Raises:
            CounterError: the reading did not change in that time.
            DeviceError: the power cannot be read.
        """
        first = not self._probed
        if first:
            readings = [self._power_reading()]
            while readings[-1][0] - readings[0][0] < _PROBE_S:
                self._clock.sleep_s(_PROBE_STEP_S)
                readings.append(self._power_reading())
            if len({power_mw for _, power_mw in readings}) == 1:
                raise self._stale(_PROBE_S)
            self.period_s, self.memory_s = probe_sensor(readings)
            self._probed = True
        self._last, self._energy_mj = self._power_reading(), 0.0
        self._changed_s, self._has_changed = self._last[0], first
        return self._edge()

    def next_edge(self, periods: int) -> Edge:
        """Return the edge ``periods`` update periods after the last one.

        Raises:
            CounterError: the reading does not change.
            DeviceError: the power cannot be read.
        """
        begin_s, _ = self._last
        step_s = self.period_s / READINGS_PER_PERIOD
        for number in range(1, periods * READINGS_PER_PERIOD + 1):
            self._clock.sleep_s(max(0.0, begin_s + number * step_s - self._clock.now_s()))
            (before_s, before_mw), self._last = self._last, self._power_reading()
            now_s, now_mw = self._last
            self._energy_mj += (now_s - before_s) * (before_mw + now_mw) / 2
            if now_mw != before_mw:
                self._changed_s, self._has_changed = now_s, True
            still_s = now_s - self._changed_s
            # Less time is allowed when a load has just begun.
            if still_s > (_PROBE_S if self._has_changed else _RISE_S + self.memory_s):
                raise self._stale(still_s)
        return self._edge()

    def times_s(
        self,
        edges: Sequence[Edge],
        begin: int = 0,  # noqa: ARG002 -- all times are exact
    ) -> tuple[list[float], float]:
        """Return the edges' times, which are exact; see `EnergySource.times_s`."""
        return [edge.time_s for edge in edges], 0.0

    def _edge(self) -> Edge:
        time_s, _ = self._last
        return Edge(time_s, time_s, self._energy_mj)

    def _power_reading(self) -> tuple[float, float]:
        now_s, power_mw = self._clock.now_s(), self._read(self._device)
        if power_mw is None:
            raise DeviceError(
                f"The {self.name} of {self._device.name} can no longer be read: check the card "
                "with nvidia-smi."
            )
        return now_s, power_mw

    def _stale(self, still_s: float) -> CounterError:
        return CounterError(
            "power_stale",
            f"The {self.name} of {self._device.name} has not changed for {still_s:.1f} s.",
        )


def probe_sensor(readings: Sequence[tuple[float, float]]) -> SensorTraits:
    """Return the traits of a sensor, from readings that begin with a load.

    The period is the median time between changes. After a step of power, the mean over a window
    rises linearly, and reaches half the step after half the window. A trait that cannot be
    determined (nothing changes, or the step is small) gets the slowest value known.

    Args:
        readings: the times in s and powers in mW, in close succession for at least two windows.
    """
    (begin_s, idle_mw), (end_s, _) = readings[0], readings[-1]
    changes_s = [later_s for (_, before), (later_s, after) in pairwise(readings) if before != after]
    gaps_s = [later - earlier for earlier, later in pairwise(changes_s)]
    period_s = min(median(gaps_s), _SLOWEST_PERIOD_S) if gaps_s else _SLOWEST_PERIOD_S
    steady_mw = fmean(mw for at_s, mw in readings if at_s >= end_s - (end_s - begin_s) / 4)
    step_mw = steady_mw - idle_mw
    if abs(step_mw) < _MIN_STEP * max(abs(steady_mw), 1.0):
        return SensorTraits(period_s, _LONGEST_WINDOW_S)
    half_s = next(s for s, mw in readings if (mw - idle_mw) / step_mw >= 0.5) - begin_s
    # On average, the reading lags by half a period.
    window_s = 2 * (half_s - period_s / 2)
    return SensorTraits(period_s, min(max(window_s, period_s), _LONGEST_WINDOW_S))


def instant_power_mw(device: Gpu) -> float | None:
    """Return the instantaneous power in mW, NVML field 186; None if the card does not report it."""
    nvml = device.nvml
    try:
        (value,) = nvml.nvmlDeviceGetFieldValues(device.handle, [nvml.NVML_FI_DEV_POWER_INSTANT])
    except nvml.NVMLError:
        return None
    return float(value.value.uiVal) if value.nvmlReturn == nvml.NVML_SUCCESS else None


def average_power_mw(device: Gpu) -> float | None:
    """Return the power in mW that the card averages over up to 1 s; None if it is not reported."""
    try:
        return float(device.nvml.nvmlDeviceGetPowerUsage(device.handle))
    except device.nvml.NVMLError:
        return None


def choose_source(device: Device) -> EnergySource:
    """Return the energy counter if the card has one (from Volta on), else the integral of a power.

    The instant power is preferred to the average power, because its window is shorter.

    Raises:
        DeviceError: the card has no energy source, or does not respond.
    """
    nvml = device.nvml
    try:
        nvml.nvmlDeviceGetTotalEnergyConsumption(device.handle)
        return EnergyCounter(device)
    except unavailable_errors(nvml):
        pass
    except nvml.NVMLError:
        return EnergyCounter(device)  # it exists; reading it again will show what is wrong
    for name, read in (("instant power", instant_power_mw), ("average power", average_power_mw)):
        if read(device) is not None:
            return PowerSamples(device, name, read)
    raise DeviceError(
        f"{device.name} offers neither an energy counter nor a power reading, so no energy can be "
        "measured on it: choose another GPU."
    )
