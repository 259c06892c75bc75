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
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

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
    _SinkKind(25.0, 0.8, 2.0, 2.0, 0.0, 1.0),
    _SinkKind(14.0, 0.5, 13.0, 5.0, 0.0, 2.0),
    _SinkKind(14.0, 0.5, 13.0, 5.0, 7.0, 4.0),
)
"""The kinds, which are equally likely: cooled like the H200s of docs/notes/temperature.md; like the
H100s there, after a rest; and like these H100s, still warm from another process's load."""
_AIR_K = np.array([-25.0, 15.0])
"""The mean and standard deviation of the temperature without power, relative to the first sample,
if the power before the first sample is the greatest seen."""
_DIE_K = np.array([20.0, 15.0])
"""The mean and standard deviation of the rise through the die under the greatest power seen."""
_READING_K = 2.5
"""The standard error assigned to a reading in whole kelvins: neighbouring readings err alike."""

SINK_S = np.tile(_CONSTANTS_S, len(_KINDS))
"""The time constant of the heat sink in each model."""
_PARAMETERS = 4


_KIND_WEIGHTS = np.exp(
    [-0.5 * (np.log(_CONSTANTS_S / kind.usual_s) / kind.spread) ** 2 for kind in _KINDS]
)
_LOG_PRIOR = np.log(_KIND_WEIGHTS / _KIND_WEIGHTS.sum(axis=1, keepdims=True)).ravel()
"""The logarithm of the probability assumed at first for each model, within its kind."""


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


@dataclass(frozen=True)
class Evidence:
    """Normal equations of the temperature in each model, of shapes (models, 4, 4) and (models, 4).

    The parameters are the temperature without power relative to that of the first sample, the
    resistances of die and heat sink, and how far the heat sink was from rest at the first sample.
    """

    squares: _Floats
    products: _Floats

    @classmethod
    def none(cls) -> Evidence:
        """Return the evidence before any reading."""
        models = len(SINK_S)
        return cls(np.zeros((models, _PARAMETERS, _PARAMETERS)), np.zeros((models, _PARAMETERS)))

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

    def posterior(self, start_w: float, peak_w: float) -> Posterior:
        """Return the distribution of the parameters."""
        kinds = [
            [
                _AIR_K * (start_w / peak_w),
                _DIE_K / peak_w,
                np.array([kind.rise_k, kind.rise_spread_k]) / peak_w,
                np.array([kind.start_k, kind.start_spread_k]),
            ]
            for kind in _KINDS
        ]
        # The means and standard deviations of the parameters assumed at first, each (models, 4).
        usual, spread = np.moveaxis(np.repeat(np.array(kinds), len(_CONSTANTS_S), axis=0), -1, 0)
        precision = self.squares + np.einsum("ij,jk->ijk", spread**-2.0, np.eye(_PARAMETERS))
        right = self.products + usual / spread**2
        covariances = np.linalg.inv(precision)
        means = np.einsum("ijk,ik->ij", covariances, right)
        # Up to a constant, the logarithm of the probability that a model gave to the readings.
        log_weights = _LOG_PRIOR + 0.5 * (
            np.einsum("ij,ij->i", means, right)
            - ((usual / spread) ** 2).sum(axis=1)
            - np.linalg.slogdet(precision)[1]
            - 2 * np.log(spread).sum(axis=1)
        )
        weights = np.exp(log_weights - log_weights.max())
        return Posterior(weights / weights.sum(), means, covariances)
