"""Orders items so that the warming of the card favours no setpoint and no kernel."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import groupby
from typing import NamedTuple, TypeVar

_T = TypeVar("_T")


class Place(NamedTuple):
    """An item's place; only adjacent items of the same ``group`` are reordered."""

    group: Hashable
    kernel: Hashable
    setpoint: Hashable


def interleave(items: Sequence[_T], place: Callable[[_T], Place | None]) -> list[_T]:
    """Interleave the setpoints and kernels of each group, deterministically.

    A group is a table of kernels and setpoints. It is traversed in as many rounds as there are
    setpoints. Each round has every kernel once, alternately forwards and backwards. From one round
    to the next, a kernel advances by one in the sequence of setpoints first, last, second, second
    to last, and so on; the kernels start at places spread over that sequence. Each setpoint and
    each kernel is therefore spread about evenly over the run.

    Args:
        items: the items as written.
        place: returns an item's place; None for an item that stays where it is.
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
