"""A thermal model: a card's temperature follows its power, and both settle.

The temperature is modelled by two thermal resistances in series:

    T = T_air + R_die P_die + R_sink P_sink

P_die and P_sink are the power, smoothed exponentially with the time constants of the die and of its
heat sink. The die follows within a second; the heat sink takes tens of seconds, and hardly matters
on a card that is cooled well. Not all of the power heats the die: the memory's power heats it less.
A warmer card leaks more, and its power grows in proportion to the temperature.

All parameters come from what the card has run so far, starting from wide assumptions. On an H100, a
kernel of 549 W warmed the die by 14 K within 1 s and by another 9 K within 40 s, with 0.44 % of
power per kelvin; on an H200, one of 498 W warmed it by 14 K and by 1 K (docs/notes/temperature.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pytest_gpuenergy.energy.cooling import DIE_S, Evidence, KnownCooling, Posterior, SinkModels

_Floats = npt.NDArray[np.float64]

_FORGOTTEN_S = 100.0
"""The time constant with which evidence about the temperature fades, because fans change speed."""
_SHARES = (0.3, 1.5)
"""The least and greatest share of the power that heats the die, relative to the first kernel's."""
_MIN_RISE_K = 3.0
"""The smallest rise of the temperature from which that share is estimated."""
_LEVEL_ERROR_K = 1.5
"""The standard deviation, common to a run, of the temperature that the share does not explain."""
_BURST_K = 40.0
"""The standard deviation of the die's temperature at the end of a pause whose mean power is the
greatest seen: twice the rise that is assumed of the die, since the last kernels draw more than the
mean."""
_ONSET_S = 0.8
"""The time after a change of load in which the die warms or cools."""
_MAX_FEEDBACK = 0.5
"""The largest feedback that is assumed: the kelvins by which a kelvin raises the temperature
further, through the power. On an H100 it is 0.15; above 1 a card would never settle."""

_SETTLED_ERROR_K, _SINK_ERROR = 0.3, 0.065
"""The standard error of the remaining change of the temperature, besides what the readings leave
open: half a reading's step, and a fraction of the rise through the heat sink. On an H100, whose
heat sink rises by 12 K under 500 W, twelve items were off by 0.77 K (docs/notes/temperature.md).
"""
_SLOW_ERROR = 0.25
"""The standard error from what changes over minutes, such as the air and the fans, for a load that
has just begun, as a fraction of the rise through the heat sink; it fades with the slowest time
constant. Half a minute after a rest, 25 items on five H100s were off by 2.2 K (root mean square),
alike on each card; 20 items on H200s, whose heat sinks rise by 2 K, were off by 0.8 K
(docs/notes/temperature.md).
"""


class ThermalSample(NamedTuple):
    """A short interval: its end, the mean power over it, and the temperature at its end."""

    time_s: float
    power_w: float
    temperature_c: float


@dataclass(frozen=True)
class Settling:
    """The temperature of a card that runs a kernel, and the one at which it will settle.

    Attributes:
        temperature_c: the mean temperature over the trials.
        settled_c: the temperature after a long time under this kernel alone.
        error_k: the standard error of the difference of these two.
        open_k: the part of that error which a longer run would reduce.
        per_k: the relative change of the power per kelvin.
        per_k_error: the standard error of ``per_k``.
    """

    temperature_c: float
    settled_c: float
    error_k: float
    open_k: float
    per_k: float
    per_k_error: float

    @property
    def gain(self) -> float:
        """The fraction by which the power will still rise."""
        return self.per_k * self._to_go_k

    @property
    def gain_error(self) -> float:
        """The standard error of `gain`, including a step of the power on the way.

        `record.WANDER` already accounts for steps that a warm card may take.
        """
        away_k = math.hypot(self._to_go_k, self.error_k)
        return math.hypot(
            self.per_k_error * away_k,
            self.per_k * self.error_k,
            step_error(max(0.0, away_k - _SETTLED_ERROR_K)),
        )

    @property
    def possible_gain(self) -> float:
        """The root mean square of the values that `gain` may have, given the run so far."""
        return self.per_k * math.hypot(self._to_go_k, self.open_k)

    @property
    def _to_go_k(self) -> float:
        return self.settled_c - self.temperature_c


def _is_past_onset(run: Sequence[ThermalSample]) -> npt.NDArray[np.bool_]:
    return np.array([sample.time_s for sample in run]) > run[0].time_s + _ONSET_S


class ThermalModel:
    """Learns the thermal behaviour of one card from everything that it runs, in order of time.

    Args:
        start: a sample of the card at rest, before anything runs.
        remembered: how the card was cooled in an earlier session; None if that is unknown.
        gpu: the GPU's name; see `SinkModels`.
    """

    def __init__(
        self, start: ThermalSample, remembered: KnownCooling | None = None, gpu: str = ""
    ) -> None:
        self._start = start
        self._end_s = start.time_s
        self._models = SinkModels(remembered, gpu)
        self._constants_s = np.array([DIE_S, *self._models.sink_s])
        self._smooth_w = np.full(len(self._constants_s), start.power_w)
        self._run: list[ThermalSample] = []
        self._run_smooth_w: list[_Floats] = []
        self._peak_w = start.power_w
        self._evidence = Evidence.none(self._models)
        self._leakage = Leakage()
        self._level_error_k = 0.0  # the first run's share is 1 by definition

    @property
    def cooling(self) -> KnownCooling:
        """The estimate of the card's cooling from everything added so far."""
        return self._evidence.posterior(self._models, self._start.power_w, self._peak_w).cooling

    def add_pause(self, end: ThermalSample) -> None:
        """Add the time since the last sample, in which no kernel was measured, with its mean power.

        Kernels may have been verified meanwhile, until just before its end or long before. The die
        follows within a second, so the more power there was, the less its temperature tells.
        """
        more_w = max(0.0, end.power_w - self._start.power_w)
        self._keep(
            [end],
            np.array([end.time_s > self._end_s + _ONSET_S]),
            _BURST_K * more_w / max(self._peak_w, end.power_w),
        )

    def add_run(self, run: Sequence[ThermalSample]) -> None:
        """Add a complete run of one kernel, from its start."""
        study = self._study(run)
        late = _is_past_onset(run)
        powers_w = np.array([sample.power_w for sample in run])
        self._leakage = self._leakage.plus(powers_w[late], study.modelled_c[late])
        heating = [sample._replace(power_w=sample.power_w * study.share) for sample in run]
        self._keep(heating, late, self._level_error_k)
        self._level_error_k = _LEVEL_ERROR_K

    def settling(self, run: Sequence[ThermalSample], trials: int) -> Settling:
        """Return the present and the settled temperature in a run that has not been added.

        Args:
            run: the samples so far, at least one.
            trials: the number of samples at the end whose mean is `Settling.temperature_c`.
        """
        study = self._study(run)
        last = run[-trials:]
        power_w = sum(sample.power_w for sample in last) / len(last)
        temperature_c = sum(sample.temperature_c for sample in last) / len(last)
        # The remaining rise of the temperature raises the power, which raises the temperature.
        feedback = min(self._leakage.per_k * study.rise_k(power_w), _MAX_FEEDBACK)
        to_go_k, unread_k = study.to_go_k(power_w, trials)
        sink_k = study.sink_k(power_w)
        slow_k = _SLOW_ERROR * sink_k * study.delayed_share(power_w, self._start.power_w)
        open_k = math.hypot(unread_k, slow_k)
        return Settling(
            temperature_c,
            temperature_c + to_go_k / (1 - feedback),
            math.hypot(_SETTLED_ERROR_K, _SINK_ERROR * sink_k, open_k),
            open_k,
            self._leakage.per_k,
            self._leakage.error,
        )

    def _keep(
        self, samples: Sequence[ThermalSample], late: npt.NDArray[np.bool_], level_error_k: float
    ) -> None:
        smooth_w = self._smoothed_power(samples)
        columns, rises_c = self._equations(samples, smooth_w)
        kept = math.exp((self._end_s - samples[-1].time_s) / _FORGOTTEN_S)
        self._evidence = self._evidence.times(kept).plus(
            columns[late], rises_c[late], level_error_k=level_error_k
        )
        self._peak_w = max(self._peak_w, *(sample.power_w for sample in samples))
        self._smooth_w, self._end_s = smooth_w[-1], samples[-1].time_s
        self._run, self._run_smooth_w = [], []

    def _smoothed_power(self, samples: Sequence[ThermalSample]) -> _Floats:
        """Return the power smoothed by the die and by each heat sink, (samples, 1 + models)."""
        # During a run, this is called again and again with more samples.
        if (count := len(self._run)) > len(samples) or samples[:count] != self._run:
            self._run, self._run_smooth_w, count = [], [], 0
        new = samples[count:]
        state_w = self._run_smooth_w[-1] if count else self._smooth_w
        begin_s = self._run[-1].time_s if count else self._end_s
        times_s = np.array([begin_s, *(sample.time_s for sample in new)])
        kept = np.exp(-np.diff(times_s)[:, np.newaxis] / self._constants_s)
        added_w = (1 - kept) * np.array([sample.power_w for sample in new])[:, np.newaxis]
        for part, more_w in zip(kept, added_w, strict=True):
            state_w = part * state_w + more_w
            self._run_smooth_w.append(state_w)
        self._run.extend(new)
        return np.array(self._run_smooth_w)

    def _equations(
        self, samples: Sequence[ThermalSample], smooth_w: _Floats
    ) -> tuple[_Floats, _Floats]:
        """Return the arguments of `Evidence.plus`."""
        times_s = np.array([sample.time_s for sample in samples]) - self._start.time_s
        sink_s = self._models.sink_s
        columns = np.empty((len(samples), len(sink_s), 4))
        columns[..., 0] = 1.0
        columns[..., 1] = smooth_w[:, :1]
        columns[..., 2] = smooth_w[:, 1:]
        columns[..., 3] = np.exp(-times_s[:, np.newaxis] / sink_s)
        rises_c = np.array([sample.temperature_c for sample in samples]) - self._start.temperature_c
        return columns, rises_c

    def _study(self, run: Sequence[ThermalSample]) -> _Study:
        columns, rises_c = self._equations(run, self._smoothed_power(run))
        late = _is_past_onset(run)
        peak_w = max(self._peak_w, *(sample.power_w for sample in run))
        evidence = self._evidence.plus(
            columns[late], rises_c[late], level_error_k=self._level_error_k
        )
        posterior = evidence.posterior(self._models, self._start.power_w, peak_w)
        first_c, sink_s = self._start.temperature_c, self._models.sink_s
        return _Study(run, columns, rises_c, first_c, sink_s, posterior)


class _Study:
    """The temperature in one run, according to that run and everything before it.

    The share of the power that heats the die is chosen such that the model fits the run's readings.

    Args:
        run: the samples of the run.
        columns: the columns of `Evidence.plus`.
        rises_c: the temperatures of the samples relative to ``first_c``.
        first_c: the temperature of the first sample of all.
        sink_s: the time constant of the heat sink in each model.
        posterior: the distribution of the parameters.

    Attributes:
        modelled_c: the modelled temperature at each sample, without the readings' rounding.
    """

    def __init__(
        self,
        run: Sequence[ThermalSample],
        columns: _Floats,
        rises_c: _Floats,
        first_c: float,
        sink_s: _Floats,
        posterior: Posterior,
    ) -> None:
        self._slowest = int(np.argmax(sink_s))
        self._columns = columns
        self._posterior = posterior
        self._air_c, self._die_k_per_w, self._sink_k_per_w, _ = np.moveaxis(posterior.points, -1, 0)
        late = _is_past_onset(run)
        self._off_c = np.zeros(self._air_c.shape)
        if late.any():
            self._off_c += rises_c[late].mean() - self._temperature_at_points(
                columns[late].mean(axis=0)
            )
        own_s = run[-1].time_s - run[0].time_s
        warm = -np.expm1(-own_s / sink_s)[:, np.newaxis]
        rises_k = run[-1].power_w * (self._die_k_per_w + self._sink_k_per_w * warm)
        shares = 1 + self._off_c / np.maximum(rises_k, _MIN_RISE_K)
        self._shares = np.where(rises_k < _MIN_RISE_K, 1.0, np.clip(shares, *_SHARES))
        modelled = np.einsum("nij,ij,i->n", columns, posterior.means, posterior.weights)
        self.modelled_c: _Floats = first_c + modelled + posterior.mean(self._off_c)

    @property
    def share(self) -> float:
        """The share of the power that heats the die."""
        return self._posterior.mean(self._shares)

    def rise_k(self, power_w: float) -> float:
        """Return the rise of the settled temperature under a power."""
        return self._posterior.mean(self._rises_k_per_w()) * power_w

    def sink_k(self, power_w: float) -> float:
        """Return the heat sink's part of the rise."""
        return self._posterior.mean(self._shares * self._sink_k_per_w) * power_w

    def delayed_share(self, power_w: float, start_w: float) -> float:
        """Return the share of a power that slow changes, which take minutes, do not yet reflect."""
        felt_w = self._columns[-1, self._slowest, 2]
        return float(np.clip(1 - (felt_w - start_w) / max(power_w - start_w, 1.0), 0.0, 1.0))

    def to_go_k(self, power_w: float, trials: int) -> tuple[float, float]:
        """Return how far the temperature will rise above its mean over the last trials.

        Returns:
            The mean, and the standard error that the readings leave open.
        """
        now_c = self._temperature_at_points(self._columns[-trials:].mean(axis=0)) + self._off_c
        to_go_k = self._air_c + self._rises_k_per_w() * power_w - now_c
        mean_k = self._posterior.mean(to_go_k)
        return mean_k, math.sqrt(self._posterior.mean((to_go_k - mean_k) ** 2))

    def _rises_k_per_w(self) -> _Floats:
        rises: _Floats = self._shares * (self._die_k_per_w + self._sink_k_per_w)
        return rises

    def _temperature_at_points(self, columns: _Floats) -> _Floats:
        """Return the temperature at the posterior's points for columns of shape (models, 4)."""
        found: _Floats = np.einsum("ij,ipj->ip", columns, self._posterior.points)
        return found


_PER_K, _PER_K_SPREAD = 0.0042, 0.0012
"""The relative change of power per kelvin that is assumed at first, and its standard deviation."""
PER_K_ERROR = 0.15
"""The relative standard error that remains after any number of runs, because kernels differ."""
_WINDOW = 3
"""The number of samples over which power and temperature are averaged."""
_WINDOW_ERROR = 0.0015
"""The relative standard error of the power averaged over `_WINDOW` samples."""
_DRIFT = 0.001
"""The relative standard deviation of slow changes of power within a part of a run that have other
causes. Without it, the slopes of 20 parts of runs on an H200 and an H100 scatter by 2.5 of their
standard errors, with it by 0.9 (docs/notes/temperature.md)."""
_JUMP = 0.003
"""The largest relative change of power between two windows that the temperature can cause."""
_MIN_WINDOWS = 7

_STEP, _STEP_K = 0.012, 8.0
"""The size of a step of the power, and the distance between steps in kelvins. The seven steps in
docs/notes/card-states.md and docs/notes/temperature.md are of 1.0 to 1.7 %; an H100 had two of them
while its die warmed from 54 to 69 degrees."""


def step_error(away_k: float) -> float:
    """Return the deviation of the power from proportionality at a distance in temperature.

    Power rises in steps. Between two temperatures lie about as many steps as the mean slope
    implies. For a regular staircase at an unknown distance, the variance is
    ``_STEP**2 * x * (1 - x)``, where x is the distance as a fraction of ``_STEP_K``. Real steps are
    not regular: beyond half of ``_STEP_K``, where the variance is largest, it is kept at that.

    Args:
        away_k: the distance from the present temperature.

    Returns:
        The relative standard deviation.
    """
    fraction = min(away_k / _STEP_K, 0.5)
    return _STEP * math.sqrt(fraction * (1 - fraction))


@dataclass(frozen=True)
class Leakage:
    """The relative change of power per kelvin, fitted to the parts of runs between steps.

    Attributes:
        squares: the left side of the normal equation, initially that of the assumed value.
        products: the right side of the normal equation.
    """

    squares: float = 1 / _PER_K_SPREAD**2
    products: float = _PER_K / _PER_K_SPREAD**2

    @property
    def per_k(self) -> float:
        """The relative change of power per kelvin."""
        return self.products / self.squares

    @property
    def error(self) -> float:
        """The standard error of `per_k`."""
        return math.hypot(1 / math.sqrt(self.squares), PER_K_ERROR * self.per_k)

    def plus(self, powers_w: _Floats, temperatures_c: _Floats) -> Leakage:
        """Return the fit that includes a run, given by its successive samples after the onset."""
        count = len(powers_w) // _WINDOW
        if count < _MIN_WINDOWS:
            return self
        powers, warmth = (
            values[: count * _WINDOW].reshape(count, _WINDOW).mean(axis=1)
            for values in (np.log(powers_w), temperatures_c)
        )
        squares, products = self.squares, self.products
        for part in _between_steps(powers - self.per_k * warmth):
            across = warmth[part] - warmth[part].mean()
            # A drift may look like a slope, whatever the number of windows.
            variance = _WINDOW_ERROR**2 + len(part) * _DRIFT**2
            squares += float(across @ across) / variance
            products += float(across @ powers[part]) / variance
        return Leakage(squares, products)


def _between_steps(powers: _Floats) -> list[npt.NDArray[np.int64]]:
    """Return the indices of each part of a series between steps, without the steps themselves."""
    side = 3
    jumps = np.zeros(len(powers))
    for at in range(side, len(powers) - side + 1):
        jumps[at] = abs(powers[at : at + side].mean() - powers[at - side : at].mean())
    inside = jumps > _JUMP
    parts = np.split(np.arange(len(powers)), np.flatnonzero(np.diff(inside)) + 1)
    return [part for part in parts if len(part) >= _MIN_WINDOWS and not inside[part[0]]]
