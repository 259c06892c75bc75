"""Infers how a card is cooled from readings of its temperature, and how certain that is.

For a given time constant of the heat sink, the temperature is linear in four parameters, and
readings turn a normal distribution of these into another normal distribution. Several models, which
differ in the time constant and in the size first assumed of the heat sink, are kept side by side
and weighted by the probability that they gave to the readings: Bayesian model averaging (J. A.
Hoeting, D. Madigan, A. E. Raftery, C. T. Volinsky, "Bayesian model averaging: a tutorial",
Statistical Science 14, 1999). Readings of a few seconds cannot tell a small heat sink from a large,
slow one. The average reflects this, which the most likely model alone would not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct

_Floats = npt.NDArray[np.float64]

DIE_S = 0.5
"""The time constant of the die."""
_CONSTANTS_S = np.array([5.0, 8.0, 13.0, 22.0, 36.0, 60.0, 100.0])
"""The time constants of the heat sink that are considered."""


class _SinkKind(NamedTuple):
    """A kind of heat sink, with the parameters that are assumed at first.

    Attributes:
        usual_s: the median of the time constant.
        spread: the standard deviation of the logarithm of the time constant.
        rise_k: the rise of its temperature under the greatest power seen.
        rise_spread_k: the standard deviation of ``rise_k``.
        start_k: the distance of its temperature from rest at the first sample.
        start_spread_k: the standard deviation of ``start_k``.
    """

    usual_s: float
    spread: float
    rise_k: float
    rise_spread_k: float
    start_k: float
    start_spread_k: float


_KINDS = (
    _SinkKind(25.0, 0.8, 1.5, 1.0, 0.0, 1.0),
    _SinkKind(14.0, 0.5, 13.0, 5.0, 0.0, 2.0),
    _SinkKind(14.0, 0.5, 13.0, 5.0, 7.0, 4.0),
)
"""The kinds: cooled like the H200s of docs/notes/temperature.md; like the H100s there, after a
rest; and like these H100s, still warm from another process's load."""
_SHARES_OF_KINDS: Mapping[str, tuple[float, ...]] = {"H200": (0.85, 0.075, 0.075)}
"""The probability of each kind where the GPU's name contains a text; others are equally likely. On
each of 17 H200s so far, in several servers, the heat sink's temperature rose by 1 to 2 K. From 0.9
on, a card whose heat sink rises by 9 K in 25 s would be off by four standard errors where the first
heat-up ends (docs/notes/temperature.md)."""
_AIR_K = np.array([-25.0, 15.0])
"""The mean and standard deviation of the temperature without power, relative to the first sample,
if the power before the first sample is the greatest seen."""
_DIE_K = np.array([20.0, 15.0])
"""The mean and standard deviation of the rise through the die under the greatest power seen."""
_READING_K = 2.5
"""The standard error assigned to a reading in whole kelvins: neighbouring readings err alike."""

_KIND_WEIGHTS = np.exp(
    [-0.5 * (np.log(_CONSTANTS_S / kind.usual_s) / kind.spread) ** 2 for kind in _KINDS]
)
_KIND_WEIGHTS /= _KIND_WEIGHTS.sum(axis=1, keepdims=True)
"""The probability assumed at first for each time constant; shape (kinds, time constants)."""

_MODELS = _KIND_WEIGHTS.size
"""The number of models of a card of which nothing is remembered."""
_PARAMETERS = 4
_DIE, _SINK = 1, 2

_STILL_COOLED = 0.9
"""The probability that a card is cooled as it was in an earlier session."""
_CHANGED = 0.2
"""The standard deviation of a resistance between two sessions, as a fraction: which kernel runs
first decides what counts as the whole power, and fans run at other speeds."""
_START, _LEAST_START_K = 0.5, 1.0
"""The standard deviation of the distance of a remembered heat sink from rest, as a fraction of its
rise under the greatest power, and the least one."""


class KnownCooling(Struct, frozen=True, forbid_unknown_fields=True):
    """How a card was cooled in a session, for the next session: the resistances of die and sink.

    Each list has an entry for each model that a session begins with: each time constant of each
    kind of heat sink. One distribution for all kinds would say less than what is assumed of a card
    by its name: between a heat sink of 1 K and one of 13 K, it has one of 4 K.

    Attributes:
        weights: the probability of the model.
        means: the means of both resistances, in K/W.
        covariances: the variance of the first, the covariance, and the variance of the second.
    """

    weights: tuple[float, ...]
    means: tuple[tuple[float, float], ...]
    covariances: tuple[tuple[float, float, float], ...]

    @property
    def is_sound(self) -> bool:
        """Whether the numbers describe distributions for the models of this version."""
        lists = (self.weights, self.means, self.covariances)
        if any(len(each) != _MODELS for each in lists):
            return False
        with np.errstate(all="ignore"):
            flat = np.concatenate([np.ravel(np.array(each, dtype=np.float64)) for each in lists])
            firsts, joint, seconds = np.array(self.covariances, dtype=np.float64).T
            return bool(
                np.isfinite(flat).all()
                and min(self.weights) >= 0
                and 0.5 < sum(self.weights) < 2
                and (firsts > 0).all()
                and (seconds > 0).all()
                and (joint**2 < firsts * seconds).all()
            )


class SinkModels:
    """The models of a session, and the distributions of their parameters before any reading.

    Args:
        remembered: how the card was cooled in an earlier session; None if that is unknown. It adds
            models to the usual ones, which gain weight if the card is cooled differently now.
        gpu: the GPU's name, which tells how such cards are cooled; empty if it is unknown.

    Attributes:
        sink_s: the time constant of the heat sink in each model.
    """

    def __init__(self, remembered: KnownCooling | None = None, gpu: str = "") -> None:
        self._remembered = remembered
        self.sink_s: _Floats = np.tile(_CONSTANTS_S, len(_KINDS))
        equal = (1 / len(_KINDS),) * len(_KINDS)
        shares = (shares for name, shares in _SHARES_OF_KINDS.items() if name in gpu)
        weights = np.ravel(np.array(next(shares, equal))[:, np.newaxis] * _KIND_WEIGHTS)
        if remembered is not None:
            again = np.array(remembered.weights).reshape(len(_KINDS), -1)
            kinds = again.sum(axis=1, keepdims=True)
            # Square roots, because an earlier session may have been too sure of a time constant.
            again = np.sqrt(again) + 1e-6
            again *= kinds / again.sum(axis=1, keepdims=True)
            again = np.ravel(_STILL_COOLED * again / again.sum())
            weights = np.concatenate([(1 - _STILL_COOLED) * weights, again])
            self.sink_s = np.tile(self.sink_s, 2)
        self.log_weights: _Floats = np.log(weights)

    def prior(self, start_w: float, peak_w: float) -> tuple[_Floats, _Floats]:
        """Return the means of the parameters, (models, 4), and the precisions, (models, 4, 4).

        Args:
            start_w: the power before the first sample.
            peak_w: the greatest power seen.
        """
        kinds = [
            [
                _AIR_K * (start_w / peak_w),
                _DIE_K / peak_w,
                np.array([kind.rise_k, kind.rise_spread_k]) / peak_w,
                np.array([kind.start_k, kind.start_spread_k]),
            ]
            for kind in _KINDS
        ]
        means, spreads = np.moveaxis(np.repeat(np.array(kinds), len(_CONSTANTS_S), axis=0), -1, 0)
        precisions = np.einsum("ij,jk->ijk", spreads**-2.0, np.eye(_PARAMETERS))
        if self._remembered is None:
            return means, precisions
        more, covariances = self._remembered_priors(self._remembered, start_w, peak_w)
        return (
            np.concatenate([means, more]),
            np.concatenate([precisions, np.linalg.inv(covariances)]),
        )

    @staticmethod
    def _remembered_priors(
        remembered: KnownCooling, start_w: float, peak_w: float
    ) -> tuple[_Floats, _Floats]:
        air_k, air_spread_k = _AIR_K * (start_w / peak_w)
        resistances = np.array(remembered.means)
        count = len(resistances)
        means = np.zeros((count, _PARAMETERS))
        means[:, 0] = air_k
        means[:, [_DIE, _SINK]] = resistances
        covariances = np.zeros((count, _PARAMETERS, _PARAMETERS))
        covariances[:, 0, 0] = air_spread_k**2
        firsts, joint, seconds = np.array(remembered.covariances).T
        covariances[:, _DIE, _DIE] = firsts + (_CHANGED * resistances[:, 0]) ** 2
        covariances[:, _SINK, _SINK] = seconds + (_CHANGED * resistances[:, 1]) ** 2
        covariances[:, _DIE, _SINK] = covariances[:, _SINK, _DIE] = joint
        rises_k = np.maximum(_LEAST_START_K, _START * np.abs(resistances[:, 1]) * peak_w)
        covariances[:, 3, 3] = rises_k**2
        return means, covariances


@dataclass(frozen=True)
class Posterior:
    """The distribution of the parameters given the readings: a normal distribution for each model.

    Attributes:
        weights: the probability of each model.
        means: the means of the parameters, shape (models, 4).
        covariances: the covariances of the parameters, shape (models, 4, 4).
    """

    weights: _Floats
    means: _Floats
    covariances: _Floats

    @cached_property
    def points(self) -> _Floats:
        """Eight equally likely points for each model, of shape (models, 8, 4).

        They have the distribution's mean and covariance, so the moments of nearly linear functions
        follow from them: the cubature rule of third degree (I. Arasaratnam, S. Haykin, "Cubature
        Kalman filters", IEEE Transactions on Automatic Control 54, 2009).
        """
        axes = np.sqrt(_PARAMETERS) * np.swapaxes(np.linalg.cholesky(self.covariances), 1, 2)
        points: _Floats = self.means[:, np.newaxis] + np.concatenate([axes, -axes], axis=1)
        return points

    def mean(self, values: _Floats) -> float:
        """Return the mean of a quantity from its values at the `points`, shape (models, 8)."""
        return float(self.weights @ values.mean(axis=1))

    @property
    def cooling(self) -> KnownCooling:
        """What the next session may remember; remembered models are joined to the usual ones."""
        copies = len(self.weights) // _MODELS
        weights = self.weights.reshape(copies, -1)
        shares = weights / np.maximum(weights.sum(axis=0), np.finfo(np.float64).tiny)
        both = slice(_DIE, _SINK + 1)
        means = self.means[:, both].reshape(copies, -1, 2)
        covariances = self.covariances[:, both, both].reshape(copies, -1, 2, 2)
        mean = np.einsum("kt,kti->ti", shares, means)
        away = means - mean
        spread = np.einsum("kt,ktij->tij", shares, covariances)
        spread += np.einsum("kt,kti,ktj->tij", shares, away, away)
        return KnownCooling(
            _floats(weights.sum(axis=0)),
            tuple((float(die), float(sink)) for die, sink in mean),
            tuple((float(c[0, 0]), float(c[0, 1]), float(c[1, 1])) for c in spread),
        )


def _floats(values: _Floats | Sequence[float]) -> tuple[float, ...]:
    return tuple(map(float, values))


@dataclass(frozen=True)
class Evidence:
    """Normal equations of the temperature in each model, of shapes (models, 4, 4) and (models, 4).

    The parameters are the temperature without power relative to that of the first sample, the
    resistances of die and heat sink, and how far the heat sink was from rest at the first sample.
    """

    squares: _Floats
    products: _Floats

    @classmethod
    def none(cls, models: SinkModels) -> Evidence:
        """Return the evidence before any reading."""
        count = len(models.sink_s)
        return cls(np.zeros((count, _PARAMETERS, _PARAMETERS)), np.zeros((count, _PARAMETERS)))

    def times(self, factor: float) -> Evidence:
        """Return the evidence with its weight multiplied by ``factor``."""
        return Evidence(factor * self.squares, factor * self.products)

    def plus(self, columns: _Floats, rises_c: _Floats, *, level_error_k: float) -> Evidence:
        """Return the evidence with further readings, of successive samples.

        Args:
            columns: the coefficient of each parameter, shape (readings, models, 4).
            rises_c: the temperatures relative to that of the first sample.
            level_error_k: the standard deviation of an error that all readings share.
        """
        count = len(rises_c)
        if not count:
            return self
        mean, mean_c = columns.mean(axis=0, keepdims=True), rises_c.mean(keepdims=True)
        return self._plus(columns - mean, rises_c - mean_c, _READING_K)._plus(
            mean, mean_c, math.hypot(_READING_K / math.sqrt(count), level_error_k)
        )

    def _plus(self, columns: _Floats, rises_c: _Floats, error_k: float) -> Evidence:
        weighed = columns / error_k**2
        return Evidence(
            self.squares + np.einsum("nij,nik->ijk", weighed, columns),
            self.products + np.einsum("nij,n->ij", weighed, rises_c),
        )

    def posterior(self, models: SinkModels, start_w: float, peak_w: float) -> Posterior:
        """Return the distribution of the parameters; see `SinkModels.prior`."""
        usual, prior = models.prior(start_w, peak_w)
        assumed = np.einsum("ijk,ik->ij", prior, usual)
        precision = self.squares + prior
        right = self.products + assumed
        covariances = np.asarray(np.linalg.inv(precision), np.float64)
        means: _Floats = np.einsum("ijk,ik->ij", covariances, right)
        # Up to a constant, the logarithm of the probability that a model gave to the readings.
        log_weights = models.log_weights + 0.5 * (
            np.einsum("ij,ij->i", means, right)
            - np.einsum("ij,ij->i", usual, assumed)
            - np.linalg.slogdet(precision)[1]
            + np.linalg.slogdet(prior)[1]
        )
        weights: _Floats = np.exp(log_weights - log_weights.max())
        weights /= weights.sum()
        return Posterior(weights, means, covariances)
