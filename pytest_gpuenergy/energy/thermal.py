"""How a card's temperature follows its power, and where both settle.

The temperature is modelled as that of two resistances in series:

    T = T_air + R_die P_die + R_sink P_sink

P_die and P_sink are the power, smoothed exponentially with the time constants of the die and of its
heat sink. The die follows within a second; the heat sink takes tens of seconds, and on a card that
is cooled well it hardly matters. Only part of the power may heat the die: that of the memory does
so less. A warmer card leaks more, and its power grows in proportion to the temperature.

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

from pytest_gpuenergy.energy.cooling import DIE_S, SINK_S, Evidence, Posterior

_Floats = npt.NDArray[np.float64]

_CONSTANTS_S = np.array([DIE_S, *SINK_S])
_FORGOTTEN_S = 100.0
"""Time constant with which evidence about the temperature fades: fans change their speed."""
_SHARES = (0.3, 1.5)
"""Least and greatest part of the power that heats the die, relative to that of the first kernel."""
_LEAST_RISE_K = 3.0
"""With a smaller rise, nothing is said about that part."""
_LEVEL_ERROR_K = 1.5
"""Standard deviation, common to a run, of what that part leaves unexplained of the temperature."""
_ONSET_S = 0.8
"""After a change of load, in which the die warms or cools."""
_MOST_FEEDBACK = 0.5
"""By how many kelvins at most one kelvin is taken to raise the temperature further, through the
power; on an H100 it is 0.15. Above 1 a card would never settle."""

_SETTLED_ERROR_K, _SINK_ERROR = 0.3, 0.065
"""Standard error of the way that the temperature has still to go, besides what the readings leave
open: half a reading's step, and a fraction of the rise through the heat sink. On an H100, whose
heat sink rises by 12 K under 500 W, twelve items were off by 0.77 K (docs/notes/temperature.md).
"""
_SLOW_ERROR, _SLOWEST = 0.25, int(np.argmax(SINK_S))
"""The same for what takes minutes to change, such as the air and the fans, as a fraction of the
rise through the heat sink, for a load that has just begun; it fades with the slowest time constant.
Half a minute after a rest, 25 items on five H100s were off by 2.2 K (root mean square), those of a
card alike; 20 items on H200s, whose heat sinks rise by 2 K, by 0.8 K (docs/notes/temperature.md).
"""


class Sample(NamedTuple):
    """The end of a short interval, the mean power over it and the temperature at its end."""

    time_s: float
    power_w: float
    temperature_c: float


@dataclass(frozen=True)
class Settling:
    """The temperature of a card that runs a kernel, and the one at which it will settle.

    Attributes:
        temperature_c: mean over the trials.
        settled_c: after a long time under this kernel alone.
        error_k: standard error of the difference of the two.
        open_k: the part of that error which a longer run would reduce.
        per_k: relative change of the power per kelvin.
        per_k_error: its standard error.
    """

    temperature_c: float
    settled_c: float
    error_k: float
    open_k: float
    per_k: float
    per_k_error: float

    @property
    def gain(self) -> float:
        """By how much the power will still rise, as a fraction."""
        return self.per_k * self._to_go_k

    @property
    def gain_error(self) -> float:
        """Standard error of `gain`, with that of a step of the power on the way.

        Steps so near that a warm card may take them are part of `record.estimate.WANDER` already.
        """
        away_k = math.hypot(self._to_go_k, self.error_k)
        return math.hypot(
            self.per_k_error * away_k,
            self.per_k * self.error_k,
            step_error(max(0.0, away_k - _SETTLED_ERROR_K)),
        )

    @property
    def possible_gain(self) -> float:
        """Root mean square of what `gain` may be by what has been seen so far."""
        return self.per_k * math.hypot(self._to_go_k, self.open_k)

    @property
    def _to_go_k(self) -> float:
        return self.settled_c - self.temperature_c


def _after_onset(run: Sequence[Sample]) -> npt.NDArray[np.bool_]:
    return np.array([one.time_s for one in run]) > run[0].time_s + _ONSET_S


class ThermalModel:
    """Learns the thermal behaviour of one card from all that it runs, in the order of time.

    Args:
        start: the card before anything runs, with its power at rest.
    """

    def __init__(self, start: Sample) -> None:
        self._start = start
        self._end_s = start.time_s
        self._smooth_w = np.full(1 + len(SINK_S), start.power_w)
        self._run: list[Sample] = []
        self._run_smooth_w: list[_Floats] = []
        self._peak_w = start.power_w
        self._evidence = Evidence.none()
        self._leakage = Leakage()
        self._level_error_k = 0.0  # the first run's share is 1 by definition

    def add_pause(self, end: Sample) -> None:
        """Add a time since the last sample in which no kernel ran, with its mean power."""
        self._keep([end], np.array([end.time_s > self._end_s + _ONSET_S]), 0.0)

    def add_run(self, run: Sequence[Sample]) -> None:
        """Add a complete run of one kernel, from its start."""
        study = self._study(run)
        late = _after_onset(run)
        powers_w = np.array([one.power_w for one in run])
        self._leakage = self._leakage.plus(powers_w[late], study.modelled_c[late])
        heating = [one._replace(power_w=one.power_w * study.share) for one in run]
        self._keep(heating, late, self._level_error_k)
        self._level_error_k = _LEVEL_ERROR_K

    def settling(self, run: Sequence[Sample], trials: int) -> Settling:
        """Where the temperature is and will be, at the end of a run that has not been added.

        Args:
            run: the samples so far, at least one.
            trials: the number of samples, at the end, over which `Settling.temperature_c` is.
        """
        study = self._study(run)
        last = run[-trials:]
        power_w = sum(one.power_w for one in last) / len(last)
        temperature_c = sum(one.temperature_c for one in last) / len(last)
        # What is still to come of the temperature raises the power, which raises the temperature.
        feedback = min(self._leakage.per_k * study.rise_k(power_w), _MOST_FEEDBACK)
        to_go_k, unread_k = study.to_go_k(power_w, trials)
        sink_k = study.sink_k(power_w)
        slow_k = _SLOW_ERROR * sink_k * study.unfelt(power_w, self._start.power_w)
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
        self, samples: Sequence[Sample], late: npt.NDArray[np.bool_], level_error_k: float
    ) -> None:
        smooth_w = self._smoothed(samples)
        columns, rises_c = self._equations(samples, smooth_w)
        kept = math.exp((self._end_s - samples[-1].time_s) / _FORGOTTEN_S)
        self._evidence = self._evidence.times(kept).plus(
            columns[late], rises_c[late], level_error_k=level_error_k
        )
        self._peak_w = max(self._peak_w, *(one.power_w for one in samples))
        self._smooth_w, self._end_s = smooth_w[-1], samples[-1].time_s
        self._run, self._run_smooth_w = [], []

    def _smoothed(self, samples: Sequence[Sample]) -> _Floats:
        """The power as smoothed by the die and by each heat sink: shape (samples, 1 + models)."""
        # A run that goes on is asked about again and again.
        if (known := len(self._run)) > len(samples) or samples[:known] != self._run:
            self._run, self._run_smooth_w, known = [], [], 0
        new = samples[known:]
        state_w = self._run_smooth_w[-1] if known else self._smooth_w
        begin_s = self._run[-1].time_s if known else self._end_s
        times_s = np.array([begin_s, *(one.time_s for one in new)])
        kept = np.exp(-np.diff(times_s)[:, np.newaxis] / _CONSTANTS_S)
        added_w = (1 - kept) * np.array([one.power_w for one in new])[:, np.newaxis]
        for part, more_w in zip(kept, added_w, strict=True):
            state_w = part * state_w + more_w
            self._run_smooth_w.append(state_w)
        self._run.extend(new)
        return np.array(self._run_smooth_w)

    def _equations(self, samples: Sequence[Sample], smooth_w: _Floats) -> tuple[_Floats, _Floats]:
        """The arguments of `Evidence.plus`."""
        times_s = np.array([one.time_s for one in samples]) - self._start.time_s
        columns = np.empty((len(samples), len(SINK_S), 4))
        columns[..., 0] = 1.0
        columns[..., 1] = smooth_w[:, :1]
        columns[..., 2] = smooth_w[:, 1:]
        columns[..., 3] = np.exp(-times_s[:, np.newaxis] / SINK_S)
        rises_c = np.array([one.temperature_c for one in samples]) - self._start.temperature_c
        return columns, rises_c

    def _study(self, run: Sequence[Sample]) -> _Study:
        columns, rises_c = self._equations(run, self._smoothed(run))
        late = _after_onset(run)
        peak_w = max(self._peak_w, *(one.power_w for one in run))
        known = self._evidence.plus(columns[late], rises_c[late], level_error_k=self._level_error_k)
        posterior = known.posterior(self._start.power_w, peak_w)
        return _Study(run, columns, rises_c, self._start.temperature_c, posterior)


class _Study:
    """What one run shows in the light of all before it.

    Its own share of the power that heats the die is such that the model fits its readings.

    Args:
        run: the samples.
        columns: see `Evidence.plus`.
        rises_c: of the samples, relative to ``first_c``.
        first_c: temperature of the first sample of all.
        posterior: of the parameters.
    """

    def __init__(
        self,
        run: Sequence[Sample],
        columns: _Floats,
        rises_c: _Floats,
        first_c: float,
        posterior: Posterior,
    ) -> None:
        self._columns = columns
        self._posterior = posterior
        self._air_c, self._die_k_per_w, self._sink_k_per_w, _ = np.moveaxis(posterior.points, -1, 0)
        late = _after_onset(run)
        self._off_c = np.zeros(self._air_c.shape)
        if late.any():
            self._off_c += rises_c[late].mean() - self._at_points(columns[late].mean(axis=0))
        own_s = run[-1].time_s - run[0].time_s
        warm = -np.expm1(-own_s / SINK_S)[:, np.newaxis]
        rises_k = run[-1].power_w * (self._die_k_per_w + self._sink_k_per_w * warm)
        shares = 1 + self._off_c / np.maximum(rises_k, _LEAST_RISE_K)
        self._shares = np.where(rises_k < _LEAST_RISE_K, 1.0, np.clip(shares, *_SHARES))
        modelled = np.einsum("nij,ij,i->n", columns, posterior.means, posterior.weights)
        self.modelled_c: _Floats = first_c + modelled + posterior.mean(self._off_c)
        """At each sample, without the readings' rounding."""

    @property
    def share(self) -> float:
        """The part of the power that heats the die."""
        return self._posterior.mean(self._shares)

    def rise_k(self, power_w: float) -> float:
        """The rise of the temperature through a power, in the end."""
        return self._posterior.mean(self._rises_k_per_w()) * power_w

    def sink_k(self, power_w: float) -> float:
        """The heat sink's part of it."""
        return self._posterior.mean(self._shares * self._sink_k_per_w) * power_w

    def unfelt(self, power_w: float, start_w: float) -> float:
        """The part of a power that has come too lately for what takes minutes to follow it.

        Args:
            power_w: the power.
            start_w: the one before the first sample.
        """
        felt_w = self._columns[-1, _SLOWEST, 2]
        return float(np.clip(1 - (felt_w - start_w) / max(power_w - start_w, 1.0), 0.0, 1.0))

    def to_go_k(self, power_w: float, trials: int) -> tuple[float, float]:
        """How far the temperature will rise above its mean over the last trials.

        Returns:
            The mean, and the standard error by what the readings leave open.
        """
        now_c = self._at_points(self._columns[-trials:].mean(axis=0)) + self._off_c
        to_go_k = self._air_c + self._rises_k_per_w() * power_w - now_c
        mean_k = self._posterior.mean(to_go_k)
        return mean_k, math.sqrt(self._posterior.mean((to_go_k - mean_k) ** 2))

    def _rises_k_per_w(self) -> _Floats:
        rises: _Floats = self._shares * (self._die_k_per_w + self._sink_k_per_w)
        return rises

    def _at_points(self, columns: _Floats) -> _Floats:
        """What the points give for coefficients of shape (models, 4)."""
        found: _Floats = np.einsum("ij,ipj->ip", columns, self._posterior.points)
        return found


_PER_K, _PER_K_SPREAD = 0.0042, 0.0012
"""Assumed at first: relative change of power per kelvin, and its standard deviation."""
_PER_K_ERROR = 0.15
"""Relative standard error that is left however much has been seen: kernels differ."""
_WINDOW = 3
_WINDOW_ERROR = 0.0015
"""Samples of which power and temperature are averaged, and the power's relative standard error."""
_DRIFT = 0.001
"""How far the power moves besides, slowly and for other reasons, while a part of a run lasts:
relative standard deviation. Without it, the slopes of 20 parts of runs on an H200 and an H100
scatter by 2.5 of their standard errors, with it by 0.9 (docs/notes/temperature.md)."""
_JUMP = 0.003
"""A larger relative change of power between two windows is not the temperature's doing."""
_LEAST_WINDOWS = 7

_STEP, _STEP_K = 0.012, 8.0
"""Size of a step of the power, and the distance to the next one. The seven steps in
docs/notes/card-states.md and docs/notes/temperature.md are of 1.0 to 1.7 %; one H100 had two of
them while its die warmed from 54 to 69 degrees."""


def step_error(away_k: float) -> float:
    """How far the power is from proportion at a temperature ``away_k`` from the present one.

    Between the two lie as many steps as the mean slope counts, or fewer, or more. Of a staircase in
    which the next step is at an unknown distance, the variance is ``_STEP**2 * x * (1 - x)`` with x
    the fraction of ``_STEP_K``. Real stairs are not regular: farther away than half the distance,
    where the variance is largest, no more is known.

    Returns:
        The relative standard deviation.
    """
    fraction = min(away_k / _STEP_K, 0.5)
    return _STEP * math.sqrt(fraction * (1 - fraction))


@dataclass(frozen=True)
class Leakage:
    """The power's relative change per kelvin, by least squares over parts of runs without steps."""

    squares: float = 1 / _PER_K_SPREAD**2
    products: float = _PER_K / _PER_K_SPREAD**2

    @property
    def per_k(self) -> float:
        """The change as a fraction."""
        return self.products / self.squares

    @property
    def error(self) -> float:
        """Its standard error."""
        return math.hypot(1 / math.sqrt(self.squares), _PER_K_ERROR * self.per_k)

    def plus(self, powers_w: _Floats, temperatures_c: _Floats) -> Leakage:
        """With what a run shows, given at successive samples after its onset."""
        count = len(powers_w) // _WINDOW
        if count < _LEAST_WINDOWS:
            return self
        powers, warmth = (
            values[: count * _WINDOW].reshape(count, _WINDOW).mean(axis=1)
            for values in (np.log(powers_w), temperatures_c)
        )
        squares, products = self.squares, self.products
        for part in _between_steps(powers - self.per_k * warmth):
            across = warmth[part] - warmth[part].mean()
            # A drift may look like a slope however many windows there are.
            variance = _WINDOW_ERROR**2 + len(part) * _DRIFT**2
            squares += float(across @ across) / variance
            products += float(across @ powers[part]) / variance
        return Leakage(squares, products)


def _between_steps(powers: _Floats) -> list[npt.NDArray[np.int64]]:
    """Indices of the parts of a series in which it does not step, without the steps themselves."""
    side = 3
    jumps = np.zeros(len(powers))
    for at in range(side, len(powers) - side + 1):
        jumps[at] = abs(powers[at : at + side].mean() - powers[at - side : at].mean())
    inside = jumps > _JUMP
    parts = np.split(np.arange(len(powers)), np.flatnonzero(np.diff(inside)) + 1)
    return [part for part in parts if len(part) >= _LEAST_WINDOWS and not inside[part[0]]]
