"""Which trials stand for a whole search: some of the fastest, some near each percentile."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pytest_gpuenergy.kernels.records import BANDS, Band

_POSITIONS: dict[Band, float] = {"fastest": 0.0, "p10": 0.10, "p25": 0.25, "p50": 0.50, "p75": 0.75}


@dataclass(frozen=True)
class Trial:
    """A trial that ran.

    Attributes:
        time_ms: time of one launch.
        identities: what makes it the same as another trial: hashes of its trace, of its kernel.
    """

    time_ms: float
    identities: tuple[str, ...]


@dataclass(frozen=True)
class Representative:
    """The trial at ``index`` of the list given, and the band it stands for."""

    index: int
    band: Band


def representatives(
    trials: Sequence[Trial], count: int, rejected: Collection[int] = ()
) -> list[Representative]:
    """Choose ``count`` of ``trials``, spread evenly over the bands; fewer when there are fewer.

    Of trials that share an identity only the fastest is looked at. The others are sorted by time.
    The band of a percentile q takes those nearest to the place q (n - 1) among all n, the faster
    of two equally near; ``fastest`` takes the first places. Bands choose in their order, and none
    takes what another has taken. The same trials always give the same choice.

    Args:
        trials: those that ran, in any order.
        count: how many are wanted; where the bands cannot be equal, the earlier ones get more.
        rejected: indices that must not be chosen, although they count for the percentiles.

    Returns:
        The chosen ones, the fastest first.
    """
    places = _distinct(trials)
    free = [place for place, index in enumerate(places) if index not in set(rejected)]
    chosen: dict[int, Band] = {}
    for number, band in enumerate(BANDS):
        wanted = count // len(BANDS) + (number < count % len(BANDS))
        position = _POSITIONS[band] * (len(places) - 1)
        nearest = sorted(free, key=lambda place, at=position: (abs(place - at), place))  # type: ignore[misc]
        for place in nearest[:wanted]:
            chosen[place] = band
            free.remove(place)
    return [Representative(places[place], chosen[place]) for place in sorted(chosen)]


def _distinct(trials: Sequence[Trial]) -> list[int]:
    """Indices by ascending time, without those that repeat an identity of a faster one."""
    seen: set[str] = set()
    distinct = []
    for index in sorted(range(len(trials)), key=lambda index: (trials[index].time_ms, index)):
        identities = trials[index].identities
        if seen.isdisjoint(identities):
            distinct.append(index)
        seen.update(identities)
    return distinct
