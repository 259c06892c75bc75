"""What the GPUs that share a model exchange: their traces on one clock, transfers and waiting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

from pytest_gpuenergy.replay.extract.trace import Launch
from pytest_gpuenergy.replay.extract.unique_kernels import category_of
from pytest_gpuenergy.support import InputError

_MOST = 0.95


class RankClock(Struct, frozen=True):
    """Where a rank's clock stands, relative to that of the first rank.

    Attributes:
        offset_us: what to add to the times of the rank's own trace.
        error_us: the offset can be wrong by no more than that; None if there is nothing to tell.
        spread_us: how far from the first rank's ends the rank's ends of 95 % of the exchanges then
            lie at most; None likewise.
    """

    offset_us: float
    error_us: float | None
    spread_us: float | None = None


class Exchange(Struct, frozen=True):
    """One exchange in which all ranks take part, such as an all-reduce.

    All have an entry for each rank, in microseconds.

    Attributes:
        begin_us: on the clock of the first rank.
        duration_us: from a rank's own beginning to its own end.
        waiting_us: the part of this until the last rank had begun.
    """

    name: str
    phase: str | None
    step: int | None
    begin_us: tuple[float, ...]
    duration_us: tuple[float, ...]
    waiting_us: tuple[float, ...]


class Exchanges(Struct, frozen=True):
    """All exchanges of a model's ranks.

    Attributes:
        clocks: of each rank.
        exchanges: in their order.
    """

    clocks: tuple[RankClock, ...]
    exchanges: tuple[Exchange, ...]

    def waiting_us(self, rank: int, phase: str | None = None) -> float:
        """How long a rank waited for the others, in all or in one phase."""
        return sum(one.waiting_us[rank] for one in self._of(phase))

    def transfer_us(self, rank: int, phase: str | None = None) -> float:
        """How long its exchanges took besides waiting."""
        return sum(one.duration_us[rank] - one.waiting_us[rank] for one in self._of(phase))

    def _of(self, phase: str | None) -> Sequence[Exchange]:
        return [one for one in self.exchanges if phase in (None, one.phase)]


def merged(ranks: Sequence[Sequence[Launch]]) -> tuple[list[Launch], Exchanges]:
    """The launches of all ranks on the clock of the first one, and what they exchanged.

    Exchanges end on all ranks at nearly the same time: the offset between two clocks is the median
    distance of their ends. No rank's part of an exchange ends before the last rank's part begins,
    which bounds the offset from both sides, though only loosely from one of them if always the same
    rank waits.

    Args:
        ranks: the launches of each rank, in the order of their beginning.

    Raises:
        InputError: the ranks did not make the same exchanges.
    """
    parts = [[one for one in group if category_of(one) == "communication"] for group in ranks]
    if len({tuple(one.name for one in group) for group in parts}) > 1:
        numbers = " and ".join(str(len(group)) for group in parts)
        raise InputError(
            f"The traces of the ranks are not of one run (they have {numbers} exchanges, or other "
            "ones): profile again."
        )
    clocks = [_clock(parts[0], group) for group in parts]
    exchanges = [
        _exchange(group, [clock.offset_us for clock in clocks])
        for group in zip(*parts, strict=True)
    ]
    found = side_by_side(ranks, [clock.offset_us for clock in clocks])
    return found, Exchanges(tuple(clocks), tuple(exchanges))


def side_by_side(
    ranks: Sequence[Sequence[Launch]], offsets_us: Sequence[float] = ()
) -> list[Launch]:
    """The launches of all ranks in the order of their beginning, each with its rank.

    Args:
        ranks: the launches of each rank.
        offsets_us: what to add to each rank's times; zero by default.
    """
    found = [
        replace(one, rank=rank, begin_us=one.begin_us + offset_us)
        for rank, (group, offset_us) in enumerate(
            zip(ranks, offsets_us or [0.0] * len(ranks), strict=True)
        )
        for one in group
    ]
    return sorted(found, key=lambda one: one.begin_us)


def _clock(first: Sequence[Launch], other: Sequence[Launch]) -> RankClock:
    if first is other:
        return RankClock(0.0, 0.0)
    if not first:
        return RankClock(0.0, None)
    pairs = list(zip(first, other, strict=True))
    # They cross where a clock drifts, or a profiler's times are off, by as much.
    low, high = sorted(
        (
            max(one.begin_us - twin.end_us for one, twin in pairs),
            min(one.end_us - twin.begin_us for one, twin in pairs),
        )
    )
    apart_us = [one.end_us - twin.end_us for one, twin in pairs]
    offset_us = min(max(median(apart_us), low), high)
    distances_us = sorted(abs(one - offset_us) for one in apart_us)
    return RankClock(
        offset_us,
        error_us=max(high - offset_us, offset_us - low),
        spread_us=distances_us[math.ceil(_MOST * len(distances_us)) - 1],
    )


def _exchange(parts: Sequence[Launch], offsets_us: Sequence[float]) -> Exchange:
    begins = [one.begin_us + offset for one, offset in zip(parts, offsets_us, strict=True)]
    last = max(begins)
    return Exchange(
        name=parts[0].name,
        phase=parts[0].phase,
        step=parts[0].step,
        begin_us=tuple(begins),
        duration_us=tuple(one.duration_us for one in parts),
        waiting_us=tuple(
            min(last - begin, one.duration_us) for begin, one in zip(begins, parts, strict=True)
        ),
    )
