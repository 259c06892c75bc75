"""How a card's temperature follows its power, and its power the temperature.

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

_Floats = npt.NDArray[np.float64]

_DIE_S = 0.35
_SINK_S = np.array([4.0, 7.0, 12.0, 20.0, 35.0, 60.0])
"""Time constants; which of those of the heat sink fits is part of what is learned."""
_SINK_USUAL_S, _SINK_SPREAD = 14.0, 0.7
"""Assumed at first: the median, and the standard deviation of the logarithm."""
_USUAL_K = np.array([-25.0, 20.0, 10.0, 0.0])
_SPREAD_K = np.array([15.0, 15.0, 15.0, 2.0])
"""Assumed at first, under the greatest power seen: the rise of the temperature through all power
before the first sample, through the die and through the heat sink, and their standard deviations;
the last is how far the heat sink is from rest when the first sample is taken."""
_READING_K = 2.5
"""Standard error that a reading of whole kelvins counts with: neighbouring ones err alike."""
_FORGOTTEN_S = 100.0
"""Time constant with which evidence about the temperature fades: fans change their speed."""
_SHARES = (0.3, 1.5)
"""Least and greatest part of the power that heats the die, relative to that of the first kernel."""
_LEAST_RISE_K = 3.0
"""With a smaller rise, nothing is said about that part."""

_PER_K, _PER_K_SPREAD = 0.0042, 0.0012
"""Assumed at first: relative change of power per kelvin, and its standard deviation."""
_PER_K_ERROR = 0.15
"""Relative standard error that is left however much has been seen: kernels differ."""
_ONSET_S = 0.8
"""After a change of load, in which the die warms."""
_WINDOW = 3
_WINDOW_ERROR = 0.0015
"""Samples of which power and temperature are averaged, and the power's relative standard error."""
_STEP = 0.003
"""A larger relative change of power between two windows is not the temperature's doing."""
_LEAST_WINDOWS = 7

_SETTLED_ERROR_K, _SINK_ERROR, _TO_GO_ERROR = 0.3, 0.065, 0.2
"""Standard error of the way that the temperature has still to go: half a reading's step, a fraction
of the rise through the heat sink, and a fraction of the way. On an H100, whose heat sink rises by
12 K under 500 W, twelve items were off by 0.77 K (docs/notes/temperature.md); the last is a guess.
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
        per_k: relative change of the power per kelvin.
        per_k_error: its standard error.
    """

    temperature_c: float
    settled_c: float
    error_k: float
    per_k: float
    per_k_error: float

    @property
    def gain(self) -> float:
        """By how much the power will still rise, as a fraction."""
        return self.per_k * (self.settled_c - self.temperature_c)

    @property
    def gain_error(self) -> float:
        """Standard error of `gain`."""
        to_go_k = self.settled_c - self.temperature_c
        return math.hypot(self.per_k_error * to_go_k, self.per_k * self.error_k)


def _after_onset(run: Sequence[Sample]) -> npt.NDArray[np.bool_]:
    return np.array([one.time_s > run[0].time_s + _ONSET_S for one in run])


class ThermalModel:
    """Learns the thermal behaviour of one card from all that it runs, in the order of time.

    Args:
        start: the card before anything runs, with its power at rest.
    """

    def __init__(self, start: Sample) -> None:
        self._start = start
        self._end_s = start.time_s
        self._smooth_w = np.full(1 + len(_SINK_S), start.power_w)
        self._peak_w = start.power_w
        self._evidence = _Evidence.none()
        self._slope = _Slope()

    def add_pause(self, end: Sample) -> None:
        """Add a time since the last sample in which no kernel ran, with its mean power."""
        self._keep([end])

    def add_run(self, run: Sequence[Sample]) -> None:
        """Add a complete run of one kernel, from its start."""
        study = self._study(run)
        self._slope = self._slope.plus(run, study.modelled_c)
        self._keep([one._replace(power_w=one.power_w * study.share) for one in run])

    def settling(self, run: Sequence[Sample], trials: int) -> Settling:
        """Where the temperature is and will be, at the end of a run that has not been added.

        Args:
            run: the samples so far, at least one.
            trials: the number of samples, at the end, over which `Settling.temperature_c` is.
        """
        study = self._study(run)
        last = run[-trials:]
        power_w = sum(one.power_w for one in last) / len(last)
        to_go_k = study.settled_c(power_w) - float(study.modelled_c[-trials:].mean())
        temperature_c = sum(one.temperature_c for one in last) / len(last)
        return Settling(
            temperature_c,
            temperature_c + to_go_k,
            math.hypot(
                _SETTLED_ERROR_K,
                _SINK_ERROR * study.sink_k_per_w * power_w,
                _TO_GO_ERROR * to_go_k,
            ),
            self._slope.per_k,
            self._slope.error,
        )

    def _keep(self, samples: Sequence[Sample]) -> None:
        smooth_w = self._smoothed(samples)
        columns, rises_c = self._equations(samples, smooth_w)
        late = _after_onset(samples) if len(samples) > 1 else np.array([True])
        kept = math.exp((self._end_s - samples[-1].time_s) / _FORGOTTEN_S)
        self._evidence = self._evidence.times(kept).plus(columns[late], rises_c[late])
        self._peak_w = max(self._peak_w, *(one.power_w for one in samples))
        self._smooth_w, self._end_s = smooth_w[-1], samples[-1].time_s

    def _smoothed(self, samples: Sequence[Sample]) -> _Floats:
        """The power as smoothed by the die and by each heat sink: shape (samples, 1 + sinks)."""
        constants_s = np.array([_DIE_S, *_SINK_S])
        before_s, state_w = self._end_s, self._smooth_w
        rows = []
        for one in samples:
            kept = np.exp((before_s - one.time_s) / constants_s)
            state_w = kept * state_w + (1 - kept) * one.power_w
            before_s = one.time_s
            rows.append(state_w)
        return np.array(rows)

    def _equations(self, samples: Sequence[Sample], smooth_w: _Floats) -> tuple[_Floats, _Floats]:
        """Coefficients of the parameters, shape (samples, sinks, 4), and the temperatures.

        The parameters are the temperature of the air relative to that of the start, the resistances
        of die and heat sink, and how far the heat sink was from rest at the start.
        """
        times_s = np.array([one.time_s for one in samples]) - self._start.time_s
        columns = np.empty((len(samples), len(_SINK_S), 4))
        columns[..., 0] = 1.0
        columns[..., 1] = smooth_w[:, :1]
        columns[..., 2] = smooth_w[:, 1:]
        columns[..., 3] = np.exp(-times_s[:, np.newaxis] / _SINK_S)
        rises_c = np.array([one.temperature_c for one in samples]) - self._start.temperature_c
        return columns, rises_c

    def _study(self, run: Sequence[Sample]) -> _Study:
        columns, rises_c = self._equations(run, self._smoothed(run))
        late = _after_onset(run)
        peak_w = max(self._peak_w, *(one.power_w for one in run))
        scale = np.array([self._start.power_w / peak_w, 1 / peak_w, 1 / peak_w, 1.0])
        evidence = self._evidence.plus(columns[late], rises_c[late])
        sink, found = evidence.most_likely(_USUAL_K * scale, _SPREAD_K * scale)
        modelled = columns[:, sink] @ found
        off_k = float((rises_c - modelled)[late].mean()) if late.any() else 0.0
        # The run's own share: its rise, as far as the model gives it, times this fits its readings.
        own_s = run[-1].time_s - run[0].time_s
        response = found[1] + found[2] * -math.expm1(-own_s / float(_SINK_S[sink]))
        rise_k = run[-1].power_w * float(response)
        share = (
            1.0 if rise_k < _LEAST_RISE_K else min(max(1 + off_k / rise_k, _SHARES[0]), _SHARES[1])
        )
        first_c = self._start.temperature_c
        return _Study(
            first_c + float(found[0]),
            share * float(found[1] + found[2]),
            share * float(found[2]),
            share,
            first_c + modelled + off_k,
        )


@dataclass(frozen=True)
class _Study:
    """What one run shows in the light of all before it.

    Attributes:
        air_c: the temperature without any power.
        rise_k_per_w: in the end, under this kernel.
        sink_k_per_w: the heat sink's part of it.
        share: the part of the power that heats the die.
        modelled_c: at each sample, without the readings' rounding.
    """

    air_c: float
    rise_k_per_w: float
    sink_k_per_w: float
    share: float
    modelled_c: _Floats

    def settled_c(self, power_w: float) -> float:
        """The temperature in the end."""
        return self.air_c + self.rise_k_per_w * power_w


@dataclass(frozen=True)
class _Evidence:
    """Normal equations of the temperature, for each time constant of the heat sink."""

    squares: _Floats
    products: _Floats

    @classmethod
    def none(cls) -> _Evidence:
        return cls(np.zeros((len(_SINK_S), 4, 4)), np.zeros((len(_SINK_S), 4)))

    def times(self, factor: float) -> _Evidence:
        return _Evidence(factor * self.squares, factor * self.products)

    def plus(self, columns: _Floats, rises_c: _Floats) -> _Evidence:
        weighed = columns / _READING_K**2
        return _Evidence(
            self.squares + np.einsum("nij,nik->ijk", weighed, columns),
            self.products + np.einsum("nij,n->ij", weighed, rises_c),
        )

    def most_likely(self, usual: _Floats, spread: _Floats) -> tuple[int, _Floats]:
        """The most likely time constant, by its index, and the parameters with it."""
        prior = np.diag(1 / spread**2)
        right = self.products + prior @ usual
        found = np.linalg.solve(self.squares + prior, right[..., np.newaxis])[..., 0]
        # Up to a constant, the sum of squares at its minimum, with that of the prior.
        costs = -np.einsum("ij,ij->i", found, right)
        costs = costs + (np.log(_SINK_S / _SINK_USUAL_S) / _SINK_SPREAD) ** 2
        best = int(costs.argmin())
        return best, found[best]


@dataclass(frozen=True)
class _Slope:
    """The power's relative change per kelvin, by least squares over parts of runs without steps."""

    squares: float = 1 / _PER_K_SPREAD**2
    products: float = _PER_K / _PER_K_SPREAD**2

    @property
    def per_k(self) -> float:
        return self.products / self.squares

    @property
    def error(self) -> float:
        return math.hypot(1 / math.sqrt(self.squares), _PER_K_ERROR * self.per_k)

    def plus(self, run: Sequence[Sample], modelled_c: _Floats) -> _Slope:
        late = _after_onset(run)
        count = int(late.sum()) // _WINDOW
        if count < _LEAST_WINDOWS:
            return self
        shape = (count, _WINDOW)
        powers = np.log([one.power_w for one in run])[late][: count * _WINDOW]
        powers = powers.reshape(shape).mean(axis=1)
        warmth = modelled_c[late][: count * _WINDOW].reshape(shape).mean(axis=1)
        squares, products = self.squares, self.products
        for part in _between_steps(powers - self.per_k * warmth):
            across = warmth[part] - warmth[part].mean()
            squares += float(across @ across) / _WINDOW_ERROR**2
            products += float(across @ powers[part]) / _WINDOW_ERROR**2
        return _Slope(squares, products)


def _between_steps(powers: _Floats) -> list[npt.NDArray[np.int64]]:
    """Indices of the parts of a series in which it does not step, without the steps themselves."""
    side = 3
    jumps = np.zeros(len(powers))
    for at in range(side, len(powers) - side + 1):
        jumps[at] = abs(powers[at : at + side].mean() - powers[at - side : at].mean())
    inside = jumps > _STEP
    parts = np.split(np.arange(len(powers)), np.flatnonzero(np.diff(inside)) + 1)
    return [part for part in parts if len(part) >= _LEAST_WINDOWS and not inside[part[0]]]
