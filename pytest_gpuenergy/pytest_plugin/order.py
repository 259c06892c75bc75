"""The order of items, so that a card that warms up favours no setpoint and no kernel."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import groupby
from typing import NamedTuple, TypeVar

_T = TypeVar("_T")


class Place(NamedTuple):
    """Where an item stands: only items of one ``group``, side by side, change places."""

    group: Hashable
    kernel: Hashable
    setpoint: Hashable


def interleave(items: Sequence[_T], place: Callable[[_T], Place | None]) -> list[_T]:
    """``items`` with setpoints and kernels of each group mixed; a function of their order alone.

    A group is a table of kernels and setpoints, gone through in as many rounds as there are
    setpoints. Each round has every kernel once, forwards and backwards in turn. From round to round
    a kernel's setpoint steps along the sequence first, last, second, last but one and so on of how
    they were written; kernels start at places of that sequence that are spread over it. So every
    stretch of the run has about as many items of each setpoint and of each kernel as any other.

    Args:
        items: in the order in which they were written.
        place: of an item; None for one that stays where it is.
    """
    ordered: list[_T] = []
    for group, members in groupby(items, key=lambda item: _group(place(item))):
        listed = list(members)
        ordered += listed if group is None else _mixed(listed, place)
    return ordered


def _group(place: Place | None) -> Hashable:
    return None if place is None else (place.group,)


def _mixed(items: list[_T], place: Callable[[_T], Place | None]) -> list[_T]:
    cells: dict[tuple[Hashable, Hashable], list[_T]] = {}
    for item in items:
        found = place(item)
        assert found is not None
        cells.setdefault((found.kernel, found.setpoint), []).append(item)
    kernels = list(dict.fromkeys(kernel for kernel, _ in cells))
    setpoints = _from_both_ends(list(dict.fromkeys(setpoint for _, setpoint in cells)))
    apart = max(1, len(setpoints) // len(kernels))
    ordered: list[_T] = []
    for turn in range(len(setpoints)):
        row = list(enumerate(kernels))
        for number, kernel in row if turn % 2 == 0 else reversed(row):
            setpoint = setpoints[(number * apart + turn) % len(setpoints)]
            ordered += cells.get((kernel, setpoint), [])
    return ordered


def _from_both_ends(values: list[Hashable]) -> list[Hashable]:
    half = (len(values) + 1) // 2
    lower, upper = values[:half], values[half:][::-1]
    ends = [value for pair in zip(lower, upper, strict=False) for value in pair]
    return ends + lower[len(upper) :]
