"""How the power of a card depends on its temperature: in proportion, and in steps.

A warmer card leaks more. Besides, the power of real cards moves in steps of which NVML shows
nothing, perhaps because the voltage follows the temperature in steps (docs/notes/card-states.md).
On average the steps are part of the proportion; between two given temperatures there may lie one
more or one fewer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_Floats = npt.NDArray[np.float64]

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
