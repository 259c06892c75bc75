"""Measures the time and energy of a launch while a kernel runs back to back."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from threading import Event, Thread
from time import perf_counter
from typing import TypeVar

import numpy as np

from pytest_gpuenergy.devices import Device, Heater, Repeater
from pytest_gpuenergy.energy.energy_source import CounterError, Edge, EnergySource
from pytest_gpuenergy.energy.reading import SLOWED, Observation, Reading, estimate, evaluate
from pytest_gpuenergy.energy.samples import choose_source
from pytest_gpuenergy.energy.sensors import (
    ThrottleState,
    power_by_samples_w,
    read_conditions,
    read_temperature,
    read_throttle_state,
)
from pytest_gpuenergy.energy.steadiness import (
    ONE_SWING,
    ONE_SWING_POWER,
    POWER_SWINGS,
    SWING_S,
    MeterSettings,
    PowerHistory,
    Steadiness,
    former_power_effect,
)
from pytest_gpuenergy.energy.thermal import Settling
from pytest_gpuenergy.energy.warmth import MIN_PAUSE_S, Announce, Preheat, WarmthWatch
from pytest_gpuenergy.record import Conditions, Metric
from pytest_gpuenergy.support import NORMAL, GpuEnergyError, student_t

_PRESENT_S = 0.3
"""The time in a heat-up over which the present temperature is averaged."""
_STEADY_S = 1.0
"""The time after which a heat-up shows whether the power is steady."""
_ALONE_S = 0.4
"""The least time before the trials in which a load that has run beside other work runs alone."""
_SPARE = 1.02
"""The factor by which a measurement is longer than it needs to be for its number of launches."""

_GLANCE_S = 0.1
"""The time after the start of a load from which its power is shown to whoever may end it."""

R = TypeVar("R", bound=Repeater)


class LoadEndedError(Exception):
    """A load was ended while it heated up, because nobody needs to know more; see `power_w`.

    Attributes:
        power_w: the power that it drew in its last moments.
    """

    def __init__(self, power_w: float) -> None:
        super().__init__(f"ended at {power_w:.0f} W")
        self.power_w = power_w


@dataclass
class _Heating:
    """A heater at work in a thread of its own.

    Attributes:
        heater: the heater.
        is_subject: whether it runs what will be measured, and so goes on until it is.
        stop: set to end the thread.
        under_way: set once the load runs.
        is_over: set once the load has ended, before its process ends.
        before: what heats the card until this load begins, if anything does.
        run: the run of what will be measured, once it has begun.
        error: the error that has ended it, if any.
    """

    heater: Heater[Repeater]
    is_subject: bool
    stop: Event = field(default_factory=Event)
    under_way: Event = field(default_factory=Event)
    is_over: Event = field(default_factory=Event)
    before: _Heating | None = None
    run: _Run | None = None
    error: Exception | None = None
    thread: Thread = field(init=False)

    def end(self) -> None:
        """End the load, unless it is to be measured, and its thread. Idempotent."""
        self.stop.set()
        if not self.under_way.is_set():
            self.heater.end()
        self.join()

    def end_load(self) -> None:
        """End the load, but do not wait until its process has ended."""
        self.stop.set()
        if not self.under_way.is_set():
            self.heater.end()
        self.is_over.wait()

    def join(self) -> None:
        """Wait until its thread has ended, and that of what heated the card before."""
        self.thread.join()
        if self.before is not None:
            self.before.thread.join()


@dataclass(frozen=True)
class _Run:
    """A run that has begun, with what was read before.

    Attributes:
        repeater: what runs.
        source: the source of the energy.
        start: the state of the card before the start.
        before_w: the mean power before the start; None if it is unknown.
        start_s: the start on the device's clock.
        is_followed: whether the source has followed it since the start, beside other work.
    """

    repeater: Repeater
    source: EnergySource
    start: Conditions
    before_w: float | None
    start_s: float
    is_followed: bool = False


@dataclass(frozen=True)
class _Trials:
    """The trials of a run so far.

    Attributes:
        warm: the edges of the heat-up, up to the first of ``edges``.
        edges: the edges between which the trials are.
        states: the throttle state of the card at the end of each trial.
        begins: the state of the card, and the host's time, at each edge with which the trials may
            begin.
    """

    warm: list[Edge]
    edges: list[Edge]
    states: list[ThrottleState]
    begins: list[tuple[Conditions, float]]

    @property
    def length_s(self) -> float:
        return self.edges[-1].time_s - self.edges[0].time_s

    @property
    def power_w(self) -> float:
        return (self.edges[-1].energy_mj - self.edges[0].energy_mj) / 1e3 / self.length_s

    @property
    def is_limited(self) -> bool:
        """Whether the power limit has held the card back."""
        return any(state.by_power_limit for state in self.states)

    def begin_later(self) -> None:
        """Make the first trial a part of the heat-up."""
        for moments in (self.edges, self.states, self.begins):
            del moments[0]
        self.warm.append(self.edges[0])


@contextlib.contextmanager
def _noting_errors(heating: _Heating) -> Iterator[None]:
    """Keep an error of the thread for whoever waits for it."""
    try:
        yield
    except Exception as error:
        heating.error = error


class EnergyMeter:
    """Measures the time and energy of what a `Repeater` runs, on one device.

    Args:
        device: the device that runs the repeaters.
        settings: the settings of the meter.
        source: the source of the energy, by default chosen at its first use.
        announce: a function that shows the time left, see `Preheat`.
        memory: the file that tells the next meter how the card is cooled; None for no such file.
    """

    def __init__(
        self,
        device: Device,
        settings: MeterSettings | None = None,
        source: EnergySource | None = None,
        announce: Announce = lambda _: None,
        memory: Path | None = None,
    ) -> None:
        self._device = device
        self._settings = settings or MeterSettings()
        self._history = PowerHistory(device)
        self._warmth = WarmthWatch(device, self._history, memory)
        self._preheat = Preheat(self._settings.preheat_s, announce)
        self._source = source
        self._ended_s = device.clock.now_s()
        self._has_run = False
        self._heating: _Heating | None = None
        self._run: _Run | None = None

    @property
    def source(self) -> EnergySource:
        """The source of the energy.

        Raises:
            DeviceError: the card has no source of energy.
        """
        if self._source is None:
            self._source = choose_source(self._device)
        return self._source

    @contextlib.contextmanager
    def heating(self) -> Iterator[None]:
        """Heat a card that has rested while the caller does something else; see `begin_heating`."""
        self.begin_heating()
        try:
            yield
        finally:
            self.end_heating()

    def begin_heating(self) -> None:
        """Heat a card that has rested until `end_heating` or `measure`. Idempotent.

        Another load does that, and the thermal model follows it as it follows a kernel. It ends
        then, however warm the card is. If it fails, the card is heated later.
        """
        if self._heating is not None:
            return
        now_s = self._device.clock.now_s()
        pause_s = now_s - self._ended_s
        has_rested = not self._has_run or pause_s > MIN_PAUSE_S
        heater = self._device.heater() if has_rested and self._settings.preheat_s else None
        if heater is None:
            return
        self._preheat.paused(pause_s)
        self._ended_s = now_s
        self._heating = heating = _Heating(heater, is_subject=False)
        heating.thread = Thread(target=self._heat, args=(heating,), name="heater", daemon=True)
        heating.thread.start()

    def begin_run(self, heater: Heater[R]) -> Callable[[], R]:
        """Heat the card with what will be measured, instead of another load.

        The heater's process is the caller's, who ends it. Other work may use the card meanwhile:
        the thermal model follows the power whatever causes it.

        Returns:
            A function that returns what runs, still running, for `measure`. It is called once, and
            no other work may use the card from then on. It raises GpuEnergyError if the load has
            failed.
        """
        other = self._heating
        heating = _Heating(heater, is_subject=True, before=other)
        loaded: list[R] = []

        def heat() -> None:
            with _noting_errors(heating):
                try:
                    loaded.append(heater.__enter__())  # while the other load heats the card
                finally:
                    if other is not None:
                        other.end_load()
                self._heat_with_subject(heating, loaded[0])

        def alone() -> R:
            heating.stop.set()
            heating.join()
            if heating.error is not None:
                raise heating.error
            self._heating, self._run = None, heating.run
            return loaded[0]

        self._heating = heating
        heating.thread = Thread(target=heat, name="heater", daemon=True)
        heating.thread.start()
        return alone

    def end_heating(self) -> None:
        """End what `begin_heating` or `begin_run` has begun. Idempotent."""
        heating, self._heating, self._run = self._heating, None, None
        if heating is None:
            return
        heating.end()
        if heating.is_subject and heating.under_way.is_set():
            self._history.note()
            self._warmth.finish(())
            self._ended_s, self._has_run = self._device.clock.now_s(), True

    def _heat_with_subject(self, heating: _Heating, repeater: Repeater) -> None:
        """Run what will be measured until `_Heating.stop` is set; it goes on running then."""
        heating.run = run = self._begun(repeater)
        heating.under_way.set()
        source, clock = run.source, self._device.clock
        with contextlib.suppress(CounterError):  # the measurement will meet it again
            self._warmth.note(source.probe())
            while not heating.stop.is_set():
                self._warmth.note(source.next_edge(_stride(source)))
                settling = self._warmth.settling(_recent(source, _stride(source)))
                self._preheat.note(clock.now_s(), settling)
            heating.run = replace(run, is_followed=True)

    def _heat(self, heating: _Heating) -> None:
        """Run a heater until its `_Heating.stop` is set or more heat tells nothing."""
        now_s = self._device.clock.now_s
        try:
            with contextlib.suppress(GpuEnergyError), heating.heater as repeater:
                source = self.source
                self._warmth.begin(read_temperature(self._device))
                repeater.start()
                heating.under_way.set()
                edges = [source.probe()]
                self._warmth.note(edges[0])
                stride = _stride(source)
                while not heating.stop.is_set():
                    edges.append(source.next_edge(stride))
                    self._warmth.note(edges[-1])
                    settling = self._warmth.settling(_recent(source, stride))
                    if not self._preheat.goes_on(now_s(), settling, is_awaited=False):
                        break
                self._preheat.end(now_s())
                repeater.stop()
                self._history.note()
                self._warmth.finish(source.times_s(edges)[0])
                self._ended_s, self._has_run = now_s(), True
                heating.is_over.set()
        finally:
            heating.is_over.set()

    def measure(
        self,
        repeater: Repeater,
        settings: MeterSettings | None = None,
        is_enough: Callable[[float], bool] | None = None,
    ) -> Reading:
        """Run ``repeater``, heat up until the power is steady, and measure until it is precise.

        Args:
            repeater: what is run.
            settings: the settings of this measurement, by default those of the meter. With a
                ``preheat_s`` of 0 its heat-up is not extended.
            is_enough: asked during the heat-up with the mean power of the last 0.2 s, in W, which
                may be some per cent off. If it returns true, the load ends.

        Raises:
            LoadEndedError: ``is_enough`` has returned true.
            KernelFault: a launch failed or hung.
            CounterError: the energy source stands still or ran backwards.
            DeviceError: NVML does not answer.
        """
        run, self._run = self._run, None
        if run is None or run.repeater is not repeater:
            self.end_heating()
            run = None
        settings = settings or self._settings
        while True:
            seen = self._observe(repeater, run, settings, is_enough)
            reading, run = evaluate(seen, self.source, settings), None
            launches = sum(trial.launches for trial in reading.trials)
            if launches >= settings.min_launches:
                return reading
            # Measure again for long enough, even if the card gets a bit faster.
            launch_s = sum(trial.seconds for trial in reading.trials) / launches
            needed_s = _SPARE * settings.min_launches * launch_s + 2 * self.source.period_s
            least_s = max(needed_s, _SPARE * settings.min_measure_s)
            settings = replace(
                settings, min_measure_s=least_s, max_measure_s=max(least_s, settings.max_measure_s)
            )

    def _begun(self, repeater: Repeater) -> _Run:
        """Start a repeater."""
        start, source = read_conditions(self._device), self.source
        before_w = self._history.mean_w()
        self._warmth.begin(start.temperature_c)
        self._preheat.paused(self._device.clock.now_s() - self._ended_s)
        repeater.start()
        return _Run(repeater, source, start, before_w, self._device.clock.now_s())

    def _observe(
        self,
        repeater: Repeater,
        run: _Run | None,
        settings: MeterSettings,
        is_enough: Callable[[float], bool] | None,
    ) -> Observation:
        began_s = perf_counter()
        run = run or self._begun(repeater)
        source = run.source
        steadiness = Steadiness(source, settings, run.start_s)
        try:
            warm = self._warm_up(steadiness, run, is_enough)
            seen = self._run_trials(steadiness, warm, run.before_w)
            warm, edges = seen.warm, seen.edges
            samples_w = power_by_samples_w(self._device, edges[-1].time_s - edges[0].time_s)
            end = read_conditions(self._device)
        except LoadEndedError:
            repeater.stop()
            self._history.note()
            self._ended_s, self._has_run = self._device.clock.now_s(), True
            self._warmth.finish(())
            raise
        except BaseException:
            repeater.stop()
            raise
        timeline = repeater.stop()
        self._history.note()
        self._ended_s, self._has_run = self._device.clock.now_s(), True
        times_s, _ = source.times_s([*warm[:-1], *edges], len(warm) - 1)
        trials = len(edges) - 1
        settling = self._warmth.settling(trials, times_s) if settings.corrected else None
        self._warmth.finish(times_s)
        return Observation(
            start_s=run.start_s,
            before_w=run.before_w,
            warm=warm,
            edges=edges,
            timeline=timeline,
            samples_w=samples_w,
            settling=settling,
            meanwhile=frozenset(seen.states),
            temperatures_c=self._warmth.readings_c[-trials:],
            start=run.start,
            begin=seen.begins[0][0],
            end=end,
            heat_wall_s=seen.begins[0][1] - began_s,
        )

    def _warm_up(
        self, steadiness: Steadiness, run: _Run, is_enough: Callable[[float], bool] | None
    ) -> list[Edge]:
        source, settings, clock = steadiness.source, steadiness.settings, self._device.clock
        begin_s = clock.now_s()
        least_s, least_limited_s = steadiness.warmup_s, settings.limited_warmup_s
        if run.is_followed:  # it has run for some time already, but not alone
            alone_s, ran_s = _ALONE_S + source.memory_s, begin_s - run.start_s
            early_s = source.period_s / 2  # by which edges may come early
            least_s = max(alone_s, least_s - ran_s) - early_s
            least_limited_s = max(alone_s, least_limited_s - ran_s) - early_s
            edges = [source.next_edge(_stride(source))]
        else:
            edges = [source.probe()]
        self._warmth.note(edges[0])
        stride = _stride(source)
        # If the source had to be probed first, the load lasted for longer. Whether the power
        # is steady shows after a second, unless nobody asks.
        asks = math.isfinite(settings.steady_slope_per_s)
        longest_s = max(settings.warmup_max_s, clock.now_s() - begin_s + asks * _STEADY_S)
        steady, limited_s = False, -math.inf
        while not steady:
            edges.append(source.next_edge(stride))
            self._warmth.note(edges[-1])
            now_s = clock.now_s()
            first = edges[-3:][0]
            power_w = (edges[-1].energy_mj - first.energy_mj) / 1e3
            power_w /= edges[-1].time_s - first.time_s
            state = read_throttle_state(self._device)
            if state.by_power_limit:
                limited_s = now_s
            is_seen = len(edges) > 2 and first.time_s - begin_s >= _GLANCE_S
            if is_enough is not None and is_seen and is_enough(power_w):
                raise LoadEndedError(power_w)
            # At the limit the power swings for seconds, about a mean that is steady. In the first
            # moments it exceeds the limit, because that holds for an average.
            swings = now_s - limited_s <= SWING_S
            exceeds = power_w >= (state.power_limit_mw or math.inf) / 1e3
            heated_s = now_s - begin_s
            if swings or exceeds:
                heated_s -= max(0.0, least_limited_s - least_s)
            steady = heated_s >= longest_s or (
                heated_s >= least_s and (swings or steadiness.settled(edges, run.before_w))
            )
            if settings.preheat_s:
                self._preheat.note(now_s, self._warmth.settling(_recent(source, stride)))
        return edges

    def _run_trials(
        self, steadiness: Steadiness, warm: list[Edge], before_w: float | None
    ) -> _Trials:
        source, settings = steadiness.source, steadiness.settings
        seen = _Trials(warm, [warm[-1]], [], [(read_conditions(self._device), perf_counter())])
        has_begun, swing = not settings.preheat_s, steadiness.swing
        preheated = has_begun
        while (
            len(seen.edges) <= settings.min_trials  # which take long if the sensor's memory is long
            or seen.length_s < settings.max_measure_s
            or (seen.is_limited and (len(seen.edges) - 1) % swing)  # a part has another mean
        ):
            seen.edges.append(source.next_edge(steadiness.stride))
            self._warmth.note(seen.edges[-1])
            seen.states.append(read_throttle_state(self._device))
            if not has_begun:  # the trials may begin here
                seen.begins.append((read_conditions(self._device), perf_counter()))
            if (
                len(seen.edges) <= settings.min_trials
                or seen.length_s + source.period_s / 2 < settings.min_measure_s
                or (seen.is_limited and (len(seen.edges) - 1) % swing)
            ):
                continue
            if not has_begun:
                # The trials count as heat, too: they begin later until enough is known after them.
                preheated = preheated or not self._preheat.goes_on(
                    self._device.clock.now_s(), self._settling(seen)
                )
                has_begun = preheated and not self._begins_early(steadiness, seen, before_w)
                if not has_begun:
                    seen.begin_later()
                    continue
            if self._are_enough(steadiness, seen):
                break
        return seen

    def _settling(self, seen: _Trials) -> Settling | None:
        """Return the settling of the power over the trials so far."""
        settling = self._warmth.settling(len(seen.edges) - 1)
        if settling is None or not seen.is_limited:
            return settling
        # A warmer card is slower, at the same power.
        return replace(
            settling, per_k=SLOWED * settling.per_k, per_k_error=SLOWED * settling.per_k_error
        )

    @staticmethod
    def _begins_early(steadiness: Steadiness, seen: _Trials, before_w: float | None) -> bool:
        """Return whether the interval would be flagged as wide for the power before the run."""
        settings, edges = steadiness.settings, seen.edges
        if edges[0].time_s - steadiness.start_s >= settings.warmup_max_s:
            return False
        middle_s, power_w = fmean((edges[0].time_s, edges[-1].time_s)), seen.power_w
        left = former_power_effect(before_w, power_w, middle_s - steadiness.start_s)
        known = settings.wander[Metric.ENERGY]
        if seen.is_limited:
            known = math.hypot(known, ONE_SWING[Metric.ENERGY])
        degrees = len(edges) - 2 + len(steadiness.like_trials(seen.warm))
        half = math.hypot(student_t(degrees) * left / 2, NORMAL * known)
        return half > 2 * settings.relative_half_width

    @staticmethod
    def _are_enough(steadiness: Steadiness, seen: _Trials) -> bool:
        """Return whether the trials are precise enough and show a steady power."""
        source, warm, edges = steadiness.source, seen.warm, seen.edges
        earlier = [warm[index] for index in steadiness.like_trials(warm)]
        times, _ = source.times_s([*earlier, *edges])
        energies_mj = [edge.energy_mj for edge in (*earlier, *edges)]
        powers = (np.diff(energies_mj) / np.diff(times)).tolist()
        before, own = powers[: len(earlier)], powers[len(earlier) :]
        scatter = estimate(
            own,
            successive=True,
            before=before,
            swing=steadiness.swing if seen.is_limited else 1,
            one_swing=ONE_SWING_POWER,
        )
        factor = POWER_SWINGS if seen.is_limited else 1.0
        if scatter.relative_half_width > factor * steadiness.settings.relative_half_width:
            return False
        if seen.is_limited:
            return not steadiness.drifts_over_swings(own)
        return not steadiness.drifts([*warm[:-1], *edges])


def _stride(source: EnergySource) -> int:
    """Return the updates of the source between two edges of a heat-up."""
    return max(1, round(0.1 / source.period_s))


def _recent(source: EnergySource, stride: int) -> int:
    """Return the number of edges of a heat-up that tell the present temperature."""
    return max(1, round(_PRESENT_S / source.period_s / stride))
