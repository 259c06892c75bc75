"""NVML's energy counter, which advances in steps: finds when, and by how much."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import numpy as np

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.energy.energy_source import CounterError, Edge
from pytest_gpuenergy.support import DeviceError

_PATIENCE_S = 0.6
"""The time without a step after which the counter counts as stopped."""
_MARGIN_READS = 1.5
"""Continuous reads begin this many read durations before a step is due."""
_PROBE_S = 0.2
"""The least time from which the period is determined."""

_MIN_SEEN = 10
_MIN_SEEN_S = 1.2
"""The least number and the least time span of seen steps from which a schedule is inferred."""
_MIN_SEEN_IN_RUN = 20
"""The least number from which it is inferred within a run: fewer would not last for long."""
_FEW_SEEN = 4
"""The least number of seen steps that a later run may continue."""
_MAX_SEEN = 64
_WIDEST = 1 / 5
"""The widest bracket around a step, as a fraction of a period, with which a schedule is used."""
_MAX_DOUBT = 2 / 5
"""The largest uncertainty of a step's time, as a fraction of a period: a step that is less certain
may be confused with its neighbour."""
_MOST_PROBED = 8
"""The most steps from which a period is determined whose distances differ."""
_SAME = 1 / 3
"""The largest difference of two distances between steps that are both a period, and the widest
bracket around each step, as fractions of the distance."""
_TRIES = 5
_GUARD = 1 / 8
"""The fraction of a period before and after a step without reads, once the schedule is known."""


class EnergyCounter:
    """Finds the moments at which a device's energy counter advances, with as few reads as possible.

    At first it awaits each step: it sleeps until just before the step is due, and then reads
    continuously. This shows when the step comes, but delays it: a step during a read waits
    milliseconds for the read to end, and includes the energy until then. Once the steps have proved
    to be regular, the counter is read only half-way between two steps. Each probe then awaits a
    single step, to check that the schedule still holds.
    """

    name = "counter"

    def __init__(self, device: Device) -> None:
        self._device = device
        self._clock = device.clock
        self._seen: deque[Edge] = deque(maxlen=_MAX_SEEN)
        self._schedule: StepSchedule | None = None
        self._number = 0
        self._last: Edge | None = None
        self._read_s = 0.0
        self.period_s = 0.0
        self.memory_s = 0.0

    def probe(self) -> Edge:
        """Find an edge; if ``period_s`` is not known well enough yet, find several.

        Raises:
            CounterError: the counter does not move, or was reset.
            DeviceError: it cannot be read.
        """
        if (schedule := self._certain_schedule()) and (
            edge := self._await_scheduled_step(schedule)
        ):
            return edge
        self._schedule, self._last = None, None
        if self._may_continue():
            return self._await_change()
        self._seen.clear()
        first, _, edge = self._await_neighbours()
        steps = 2
        self.period_s = (edge.time_s - first.time_s) / steps
        while edge.time_s - first.time_s < _PROBE_S:
            edge = self.next_edge(max(1, steps // 2))
            steps = round((edge.time_s - first.time_s) / self.period_s)
        return edge

    def next_edge(self, periods: int) -> Edge:
        """Return the edge about ``periods`` update periods after the last one.

        Raises:
            CounterError: the counter does not move, or was reset.
            DeviceError: it cannot be read.
        """
        assert self._last is not None
        if self._schedule is not None:
            return self._between_steps(self._schedule, self._number + periods)
        edge = self._await_step(self._last.time_s + periods * self.period_s)
        steps = max(1, step_numbers(self._seen, self.period_s)[-1])
        self.period_s = (edge.time_s - self._seen[0].time_s) / steps
        if (
            len(self._seen) >= _MIN_SEEN_IN_RUN
            and (schedule := self._certain_schedule())
            and schedule.has_step_at(edge)
        ):
            self._adopt(schedule, edge)
        return edge

    def times_s(self, edges: Sequence[Edge], begin: int = 0) -> tuple[list[float], float]:
        """Return the times by the schedule, or else by a line; see `EnergySource.times_s`."""
        if (schedule := self._schedule) is None:
            return regular_times_s(edges, self.period_s, begin)
        numbers = [schedule.number_at(edge.time_s) for edge in edges]
        return schedule.times_s(numbers), schedule.span_error_s(numbers[-1] - numbers[begin])

    def _await_neighbours(self) -> list[Edge]:
        """Return three neighbouring steps.

        While another process begins to use the card, a read may take longer than a period, and hide
        steps. The edge that it finds has a wide bracket, and other distances than the next.
        """
        edges = [self._await_change() for _ in range(3)]
        for _ in range(_MOST_PROBED - len(edges)):
            before_s, last_s = (later.time_s - edge.time_s for edge, later in pairwise(edges))
            widest_s = max(edge.before_s - edge.after_s for edge in edges)
            if max(abs(last_s - before_s), widest_s) <= _SAME * last_s:
                break
            self._seen.popleft()
            edges = [*edges[1:], self._await_change()]
        return edges

    def _may_continue(self) -> bool:
        """Return whether the next step can be numbered as those seen before, in a shorter run.

        Too few have been seen to infer a schedule, and their period is known well enough.
        """
        if len(self._seen) < _FEW_SEEN or self._has_seen_enough:
            return False
        span_s = self._seen[-1].time_s - self._seen[0].time_s
        width_s = max(edge.before_s - edge.after_s for edge in self._seen)
        gap_s = self._clock.now_s() - self._seen[-1].time_s
        return gap_s * width_s / span_s <= _WIDEST * self.period_s

    @property
    def _has_seen_enough(self) -> bool:
        enough = len(self._seen) >= _MIN_SEEN
        return enough and self._seen[-1].time_s - self._seen[0].time_s >= _MIN_SEEN_S

    def _certain_schedule(self) -> StepSchedule | None:
        """Return the schedule of the seen steps, or None if it is not certain enough for reads."""
        if not self._has_seen_enough:
            return None
        usual_s = median(edge.before_s - edge.after_s for edge in self._seen)
        if usual_s > _WIDEST * self.period_s:
            return None
        # An unusually long read says little about the moment of a step.
        clear = [edge for edge in self._seen if edge.before_s - edge.after_s <= 2 * usual_s]
        return fitted_schedule(clear, self.period_s)

    def _await_scheduled_step(self, schedule: StepSchedule) -> Edge | None:
        """Await a step; return None if it does not come when the ``schedule`` predicts."""
        number = schedule.number_at(self._clock.now_s()) + 1
        doubt_s = 3 * schedule.moment_error_s(number)
        if doubt_s > _MAX_DOUBT * schedule.period_s:
            return None  # the schedule is too old
        self._last = None
        edge = self._await_step(schedule.moment_s(number) - doubt_s)
        if not schedule.has_step_at(edge, doubt_s):
            return None
        if (better := self._certain_schedule()) is None:
            return None
        self._adopt(better, edge)
        return edge

    def _adopt(self, schedule: StepSchedule, edge: Edge) -> None:
        """Read by a schedule from now on, at one of whose steps ``edge`` is."""
        self._schedule, self.period_s = schedule, schedule.period_s
        self._number = schedule.number_at(edge.time_s)

    def _between_steps(self, schedule: StepSchedule, number: int) -> Edge:
        """Read half-way between step ``number``, or a later step, and the step after it."""
        assert self._last is not None
        clock = self._clock
        for _ in range(_TRIES):
            middle_s = schedule.moment_s(number) + schedule.period_s / 2
            clock.sleep_s(max(0.0, middle_s - clock.now_s()))
            begin_s, energy_mj = self._read_energy()
            if energy_mj < self._last.energy_mj:
                self._raise_reset()
            off_s = max(middle_s - begin_s, begin_s + self._read_s - middle_s)
            if off_s > (1 / 2 - _GUARD) * schedule.period_s:
                # The host slept or read for too long: the read may belong to another step, and may
                # have delayed it.
                number = schedule.number_at(clock.now_s()) + 1
            elif energy_mj > self._last.energy_mj:
                moment_s, error_s = schedule.moment_s(number), schedule.moment_error_s(number)
                self._last = Edge(moment_s - error_s, moment_s + error_s, energy_mj)
                self._number = number
                return self._last
            else:
                break
        # The counter has stopped or changed its schedule, or reads have become too slow.
        self._schedule = None
        self._seen.clear()
        still = energy_mj == self._last.energy_mj
        return self._await_change(since_s=schedule.moment_s(self._number + 1) if still else None)

    def _await_step(self, due_s: float) -> Edge:
        # No reads before that: the value read just before the edge must still be the old one.
        pause_s = due_s - self._clock.now_s() - _MARGIN_READS * self._read_s - self.period_s / 20
        if pause_s > 0:
            self._clock.sleep_s(pause_s)
        return self._await_change()

    def _await_change(self, since_s: float | None = None) -> Edge:
        """Return the next edge.

        Raises:
            CounterError: there is none within `_PATIENCE_S` of ``since_s``, or of now without it.
        """
        begin_s, old_mj = self._read_energy()
        last = self._last
        if last is not None and old_mj < last.energy_mj:
            self._raise_reset()
        deadline_s = (begin_s if since_s is None else since_s) + _PATIENCE_S
        while True:
            read_s, new_mj = self._read_energy()
            if new_mj < old_mj:
                self._raise_reset()
            if new_mj > old_mj:
                self._last = Edge(begin_s, read_s + self._read_s, new_mj)
                self._seen.append(self._last)
                return self._last
            begin_s = read_s
            if read_s > deadline_s:
                raise CounterError(
                    "counter_stale",
                    f"The energy counter of {self._device.name} has not moved for "
                    f"{_PATIENCE_S:g} s.",
                )

    def _read_energy(self) -> tuple[float, int]:
        """Return the time at which the read began, and the energy in mJ."""
        begin_s = self._clock.now_s()
        nvml = self._device.nvml
        try:
            energy_mj = int(nvml.nvmlDeviceGetTotalEnergyConsumption(self._device.handle))
        except nvml.NVMLError as error:
            raise DeviceError(
                f"The energy counter of {self._device.name} cannot be read ({error}): check the "
                "card with nvidia-smi; it needs a GPU of the Volta generation or later."
            ) from None
        self._read_s = self._clock.now_s() - begin_s
        return begin_s, energy_mj

    def _raise_reset(self) -> None:
        raise CounterError(
            "counter_reset", f"The energy counter of {self._device.name} ran backwards."
        )


@dataclass(frozen=True)
class StepSchedule:
    """Steps at the times ``phase_s + k * period_s``, from a fit to seen steps.

    Attributes:
        phase_s: the time of step 0.
        period_s: the time between two steps.
        count: the number of seen steps.
        middle: the mean of their numbers ``k``.
        spread: the sum of the squared deviations of their numbers from that mean.
        error_s: the standard deviation of a seen step from the line.
        bracket_s: the widest bracket around the time of a seen step.
    """

    phase_s: float
    period_s: float
    count: int
    middle: float
    spread: float
    error_s: float
    bracket_s: float

    def moment_s(self, number: int) -> float:
        """Return the time at which step ``number`` is due."""
        return self.phase_s + number * self.period_s

    def number_at(self, moment_s: float) -> int:
        """Return the number of the step that is due closest to ``moment_s``."""
        return round((moment_s - self.phase_s) / self.period_s)

    def has_step_at(self, edge: Edge, doubt_s: float = 0.0) -> bool:
        """Return whether a step is due at an edge, whose moments are known within ``doubt_s``."""
        off_s = edge.time_s - self.moment_s(self.number_at(edge.time_s))
        return abs(off_s) <= doubt_s + self.bracket_s

    def moment_error_s(self, number: int) -> float:
        """Return the standard error of `moment_s`."""
        share = 1 / self.count + (number - self.middle) ** 2 / self.spread
        return self.error_s * math.sqrt(share)

    def times_s(self, numbers: Sequence[int]) -> list[float]:
        """Return the times of the steps with these numbers."""
        return [self.moment_s(number) for number in numbers]

    def span_error_s(self, steps: int) -> float:
        """Return the standard error of the time that a number of steps takes."""
        return self.error_s * steps / math.sqrt(self.spread)


def regular_times_s(
    edges: Sequence[Edge], period_s: float, begin: int = 0
) -> tuple[list[float], float]:
    """Return the edges' times, made precise by the regularity of the counter's updates.

    A read takes milliseconds, so the time of a single edge is known to within one or two
    milliseconds; all edges lie on one line ``phase + k * period``, fitted here by least squares.

    Returns:
        The fitted times in seconds, and the standard error of the time from ``edges[begin]`` to the
        last edge. The times are the midpoints instead if the edges are farther from a line than
        their own uncertainty.
    """
    if (line := fitted_schedule(edges, period_s)) is None:
        widths = [edge.before_s - edge.after_s for edge in edges]
        return [edge.time_s for edge in edges], float(np.mean(widths)) / math.sqrt(6)
    numbers = step_numbers(edges, period_s)
    return line.times_s(numbers), line.span_error_s(numbers[-1] - numbers[begin])


def fitted_schedule(edges: Sequence[Edge], period_s: float) -> StepSchedule | None:
    """Return a fit to successive edges, or None if they are too far from a line."""
    numbers = np.array(step_numbers(edges, period_s))
    if len(edges) < 3 or (np.diff(numbers) < 1).any():
        return None
    middles = np.array([edge.time_s for edge in edges])
    widths = np.array([edge.before_s - edge.after_s for edge in edges])
    off = numbers - numbers.mean()
    spread = float(off @ off)
    period = float(off @ (middles - middles.mean())) / spread
    phase = float(middles.mean()) - period * float(numbers.mean())
    residuals = middles - (phase + period * numbers)
    if np.abs(residuals).max() > widths.max():
        return None
    return StepSchedule(
        phase_s=phase,
        period_s=period,
        count=len(edges),
        middle=float(numbers.mean()),
        spread=spread,
        error_s=math.sqrt(float((residuals**2).sum()) / (len(edges) - 2)),
        bracket_s=float(widths.max()),
    )


def step_numbers(edges: Sequence[Edge], period_s: float) -> list[int]:
    """Return the number of each edge's step, counted from 0 at the first edge."""
    numbers = [0]
    # From edge to edge: over many steps, an error of the period could add up to a whole period.
    for before, after in pairwise(edges):
        numbers.append(numbers[-1] + round((after.time_s - before.time_s) / period_s))
    return numbers
