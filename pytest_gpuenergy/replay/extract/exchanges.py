"""Merges the traces of GPUs that share a model, and separates transfers from waiting.

The exchanges between the GPUs, such as all-reduces, put all traces on one clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

from pytest_gpuenergy.replay.extract.trace import TraceLaunch
from pytest_gpuenergy.replay.extract.unique_kernels import kernel_category
from pytest_gpuenergy.support import InputError

_MOST = 0.95
"""The part of the exchanges for which `RankClock.spread_us` is stated."""


class RankClock(Struct, frozen=True):
    """The clock of a rank relative to that of the first rank.

    Attributes:
        offset_us: The offset that is added to the times of the rank's own trace.
        error_us: The largest possible error of the offset; None without exchanges.
        spread_us: The distance within which 95 % of the exchanges end on the rank and on the first
            rank, once the offset is added; None without exchanges, and for the first rank.
    """

    offset_us: float
    error_us: float | None
    spread_us: float | None = None


class RankExchange(Struct, frozen=True):
    """An exchange in which all ranks take part, such as an all-reduce.

    Attributes:
        name: The name of the kernel.
        phase: The phase of the model; None where it is unknown.
        step: The number of the step; None where it is unknown.
        begin_us: The begin on each rank, on the clock of the first rank.
        duration_us: The duration on each rank.
        waiting_us: The part of each duration until the last rank has begun.
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
        clocks: The clock of each rank.
        exchanges: The exchanges in their order.
    """

    clocks: tuple[RankClock, ...]
    exchanges: tuple[RankExchange, ...]

    def waiting_us(self, rank: int) -> float:
        """Return how long a rank waited for the others."""
        return sum(exchange.waiting_us[rank] for exchange in self.exchanges)

    def transfer_us(self, rank: int) -> float:
        """Return how long the exchanges of a rank took besides waiting."""
        whole_us = sum(exchange.duration_us[rank] for exchange in self.exchanges)
        return whole_us - self.waiting_us(rank)


def merged(ranks: Sequence[Sequence[TraceLaunch]]) -> tuple[list[TraceLaunch], Exchanges]:
    """Return the launches of all ranks on the clock of the first rank, and their exchanges.

    An exchange ends on all ranks at nearly the same time, so the offset between two clocks is the
    median distance of the ends. On no rank does an exchange end before it has begun on the last
    rank. This bounds the offset from both sides; one bound is loose if the same rank always waits.

    Args:
        ranks: The launches of each rank, in the order of their begin.

    Raises:
        InputError: The ranks did not make the same exchanges.
    """
    parts = [
        [launch for launch in group if kernel_category(launch) == "communication"]
        for group in ranks
    ]
    if len({tuple(launch.name for launch in group) for group in parts}) > 1:
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
    ranks: Sequence[Sequence[TraceLaunch]], offsets_us: Sequence[float] = ()
) -> list[TraceLaunch]:
    """Return the launches of all ranks in order, each with its rank and moved by its offset."""
    found = [
        replace(launch, rank=rank, begin_us=launch.begin_us + offset_us)
        for rank, (group, offset_us) in enumerate(
            zip(ranks, offsets_us or [0.0] * len(ranks), strict=True)
        )
        for launch in group
    ]
    return sorted(found, key=lambda launch: launch.begin_us)


def _clock(first: Sequence[TraceLaunch], other: Sequence[TraceLaunch]) -> RankClock:
    if first is other:
        return RankClock(0.0, 0.0)
    if not first:
        return RankClock(0.0, None)
    pairs = list(zip(first, other, strict=True))
    # The bounds cross if a clock drifts or a profiler's times are off by more than their distance.
    low, high = sorted(
        (
            max(first_part.begin_us - twin.end_us for first_part, twin in pairs),
            min(first_part.end_us - twin.begin_us for first_part, twin in pairs),
        )
    )
    apart_us = [first_part.end_us - twin.end_us for first_part, twin in pairs]
    offset_us = min(max(median(apart_us), low), high)
    distances_us = sorted(abs(us - offset_us) for us in apart_us)
    return RankClock(
        offset_us,
        error_us=max(high - offset_us, offset_us - low),
        spread_us=distances_us[math.ceil(_MOST * len(distances_us)) - 1],
    )


def _exchange(parts: Sequence[TraceLaunch], offsets_us: Sequence[float]) -> RankExchange:
    begins = [part.begin_us + offset for part, offset in zip(parts, offsets_us, strict=True)]
    last = max(begins)
    return RankExchange(
        name=parts[0].name,
        phase=parts[0].phase,
        step=parts[0].step,
        begin_us=tuple(begins),
        duration_us=tuple(part.duration_us for part in parts),
        waiting_us=tuple(
            min(last - begin, part.duration_us) for begin, part in zip(begins, parts, strict=True)
        ),
    )
