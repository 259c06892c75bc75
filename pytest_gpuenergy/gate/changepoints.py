"""Finds changes of level in a series of figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

LEAST = 3
"""Least number of values on either side of a change."""

SIGNIFICANCE = 0.01
"""Largest p-value of a change."""

_PERMUTATIONS = 1999
_SEED = 20261121

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ChangePoint:
    """The level changes at ``index``, the first value of the new level.

    ``p`` is the p-value of the permutation test.
    """

    index: int
    p: float


def change_points(values: Sequence[float]) -> list[ChangePoint]:
    """Find changes of level by binary segmentation with a rank test.

    Each place of a segment with at least `LEAST` values on either side gets the standardized
    statistic of the rank sum test. The largest is compared with the largest of each of 1999
    permutations of the segment. If it is among their top 1 %, the segment is split there, and both
    parts are examined likewise. Ranks, unlike means, make the result independent of how far out an
    outlier is. Fewer than nine or ten values cannot be significant at this level.

    Sources: A. N. Pettitt, "A Non-Parametric Approach to the Change-Point Problem", Applied
    Statistics 28(2), 1979 (rank statistic); A. J. Scott and M. Knott, "A Cluster Analysis Method
    for Grouping Means in the Analysis of Variance", Biometrics 30(3), 1974 (binary segmentation).

    Args:
        values: in chronological order, independent except for their level.

    Returns:
        The changes in chronological order; deterministic.
    """
    generator = np.random.default_rng(_SEED)
    found: list[ChangePoint] = []
    segments = [(0, len(values))]
    while segments:
        begin, end = segments.pop()
        if end - begin < 2 * LEAST:
            continue
        ranks = _ranks(np.asarray(values[begin:end], dtype=np.float64))
        statistics = _statistics(ranks[np.newaxis, :])[0]
        cut = int(statistics.argmax())
        shuffled = generator.permuted(np.tile(ranks, (_PERMUTATIONS, 1)), axis=1)
        # Values that differ only by rounding count as equal.
        as_large = _statistics(shuffled).max(axis=1) >= statistics[cut] * (1 - 1e-12)
        p = (1 + int(as_large.sum())) / (1 + _PERMUTATIONS)
        if p <= SIGNIFICANCE and statistics[cut] > 0:
            at = begin + LEAST + cut
            found.append(ChangePoint(at, p))
            segments += [(begin, at), (at, end)]
    return sorted(found, key=lambda change: change.index)


def _ranks(values: _Floats) -> _Floats:
    """Ranks from 1, equal values sharing their mean rank."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum()
    ranks: _Floats = (last - (counts - 1) / 2)[place]
    return ranks


def _statistics(ranks: _Floats) -> _Floats:
    """Standardized |rank sum - expected| of each cut: (rows, n) to (rows, n - 2 LEAST + 1)."""
    count = ranks.shape[1]
    before = np.arange(LEAST, count - LEAST + 1)
    sums = ranks.cumsum(axis=1)[:, before - 1]
    deviation = np.sqrt(before * (count - before) * (count + 1) / 12)
    standardized: _Floats = np.abs(sums - before * (count + 1) / 2) / deviation
    return standardized
