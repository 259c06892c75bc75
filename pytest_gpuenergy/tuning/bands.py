"""Bands of a search: chooses trials that represent it, the fastest and some near percentiles."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pytest_gpuenergy.tuning.records import Band

_POSITIONS: dict[Band, float] = {"fastest": 0.0, "p10": 0.10, "p25": 0.25, "p50": 0.50, "p75": 0.75}


@dataclass(frozen=True)
class Contender:
    """A trial that ran.

    Attributes:
        time_ms: the time of one launch.
        identities: keys of its recipe and its kernel; trials that share a key are the same.
        cost: ranks the best trials, lower is better; None stands for the time.
    """

    time_ms: float
    identities: tuple[str, ...]
    cost: float | None = None

    @property
    def merit(self) -> float:
        """The number by which the best trials are chosen: lower is better."""
        return self.time_ms if self.cost is None else self.cost


@dataclass(frozen=True)
class Representative:
    """The trial at ``index`` of the given list, and the band that it represents."""

    index: int
    band: Band


def representatives(
    trials: Sequence[Contender],
    count: int,
    rejected: Collection[int] = (),
    *,
    best_only: bool = False,
) -> list[Representative]:
    """Choose ``count`` of ``trials``, distributed evenly over the bands; fewer if there are fewer.

    Of trials that share an identity only the fastest is considered. They are sorted by time. The
    band of a percentile q takes the trials nearest to the place q (n - 1) among all n, and of two
    equally near the faster; ``fastest`` takes the trials with the lowest cost. Bands choose in
    their order, and none takes a trial that another has taken. The same trials always give the
    same choice.

    Args:
        trials: the trials that ran, in any order.
        count: the number to choose; if the bands cannot be equal, the earlier ones get more.
        rejected: indices that must not be chosen, although they count for the percentiles.
        best_only: whether all are chosen from the first band.

    Returns:
        The chosen trials: the first band by cost, then the others by time.
    """
    places = _distinct(trials)
    free = [place for place, index in enumerate(places) if index not in set(rejected)]
    chosen: dict[int, Band] = {}
    positions: dict[Band, float] = {"fastest": 0.0} if best_only else _POSITIONS
    for number, (band, position) in enumerate(positions.items()):
        wanted = count // len(positions) + (number < count % len(positions))
        at = position * (len(places) - 1)
        order: list[tuple[float, int]] = [
            (trials[places[place]].merit if band == "fastest" else abs(place - at), place)
            for place in free
        ]
        for _, place in sorted(order)[:wanted]:
            chosen[place] = band
            free.remove(place)
    best = [place for place, band in chosen.items() if band == "fastest"]
    others = sorted(place for place, band in chosen.items() if band != "fastest")
    return [Representative(places[place], chosen[place]) for place in best + others]


def _distinct(trials: Sequence[Contender]) -> list[int]:
    """Return the indices by ascending time, without trials that repeat a faster one's identity."""
    seen: set[str] = set()
    distinct = []
    for index in sorted(range(len(trials)), key=lambda index: (trials[index].time_ms, index)):
        identities = trials[index].identities
        if seen.isdisjoint(identities):
            distinct.append(index)
        seen.update(identities)
    return distinct
