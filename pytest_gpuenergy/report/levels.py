"""The level of each run, which its kernels have in common, and the means of figures without it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import NamedTuple

from pytest_gpuenergy.record import Interval, Measurement, Metric, limited
from pytest_gpuenergy.support import NORMAL

_LEAST = 5
"""Least number of kernels of which the level of a run is estimated."""

_ROUNDS = 30
"""Of the fit of levels, whose error shrinks with each by about the share of what runs lack."""

_FAR = 9.0
"""An item whose runs lie three times as far apart as their intervals explain has an interval by its
own scatter, which is no part of that of all."""


class Place(NamedTuple):
    """What shares a level: the measurements of one run on one board under one cap."""

    run: int
    board: str | None
    cap: str


@dataclass(frozen=True)
class Found:
    """A measurement without doubt, and where it was made."""

    place: Place
    measurement: Measurement


def levels_of(items: Iterable[Sequence[Found]], metric: Metric) -> Mapping[Place, float]:
    """By how much the logarithms of a metric are larger in a run than in the mean of all runs.

    Items and levels are fitted in turn, levels by medians, so that single kernels do not matter.
    """
    tables: dict[str, list[dict[Place, float]]] = defaultdict(list)
    for several in items:
        if len(several) > 1:
            row = {one.place: math.log(figure_of(one.measurement, metric)) for one in several}
            tables[several[0].place.cap].append(row)
    found: dict[Place, float] = {}
    for rows in tables.values():
        places = sorted({place for row in rows for place in row}, key=str)
        usable = [p for p in places if sum(p in row for row in rows) >= _LEAST]
        levels = dict.fromkeys(places, 0.0)
        for _ in range(_ROUNDS):
            middles = [fmean(value - levels[place] for place, value in row.items()) for row in rows]
            for place in usable:
                levels[place] = median(
                    row[place] - middle
                    for row, middle in zip(rows, middles, strict=True)
                    if place in row
                )
        average = fmean(levels.values())
        found |= {
            place: level - average if place in usable else 0.0 for place, level in levels.items()
        }
    return found


@dataclass(frozen=True)
class Mean:
    """A metric of one item: the mean of its logarithms without the levels of the runs.

    Attributes:
        cap: under which it was measured.
        log: the mean.
        half: half of its 95 % interval; None where a run has none.
        ratio: of what the runs scatter to what their intervals explain, squared; None if unknown.
        degrees: degrees of freedom of that ratio.
    """

    cap: str
    log: float
    half: float | None
    ratio: float | None
    degrees: int

    @classmethod
    def of(cls, several: Sequence[Found], metric: Metric, levels: Mapping[Place, float]) -> Mean:
        """Of the measurements of one item, less the levels of the runs they are from."""
        logs = [
            math.log(figure_of(one.measurement, metric)) - levels.get(one.place, 0.0)
            for one in several
        ]
        estimates = [one.measurement.estimate(metric) for one in several]
        halves = [one.relative_half_width for one in estimates if one is not None]
        cap, middle, degrees = several[0].place.cap, fmean(logs), len(logs) - 1
        if len(halves) < len(logs):
            return cls(cap, middle, None, None, degrees)
        half = math.hypot(*halves) / len(halves)
        if not degrees or not all(halves):
            return cls(cap, middle, half, None, degrees)
        squares = math.fsum(
            ((one - middle) * NORMAL / own) ** 2 for one, own in zip(logs, halves, strict=True)
        )
        return cls(cap, middle, half, squares / degrees, degrees)

    def interval(self, common: float) -> Interval | None:
        """The 95 % interval; ``common`` is the ratio of all items under this cap."""
        if self.half is None:
            return None
        own = self.ratio or 0.0
        half = limited(self.half * math.sqrt(max(1.0, common, own if own > _FAR else 0.0)))
        return Interval(math.exp(self.log - half), math.exp(self.log + half))


def common_ratios(means: Iterable[Mean]) -> Mapping[str, float]:
    """The mean ratio of the items under each cap, by which the intervals are too narrow."""
    found: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for one in means:
        if one.ratio is not None and one.ratio <= _FAR:
            found[one.cap].append((one.ratio, one.degrees))
    return {
        cap: math.fsum(ratio * degrees for ratio, degrees in several)
        / sum(degrees for _, degrees in several)
        for cap, several in found.items()
    }


def figure_of(m: Measurement, metric: Metric) -> float:
    """A figure of a measured kernel."""
    found = m.figure(metric)
    assert found is not None  # all are present
    return found
