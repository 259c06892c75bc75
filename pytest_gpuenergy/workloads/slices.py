"""Slices of inputs, such as rows and columns, of a kind of their own.

A slice has, for instance, one large value among ordinary ones, so that it alone decides the slice's
maximum, or its few highest values where one thread comes by. Which kinds there are and where
extremes stand follows from turns, so that successive slices differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pytest_gpuenergy.workloads.number_types import Array

_MOST_THREADS_BITS = 10
"""The largest distance of values that one thread comes by, as a power of two."""
_SPARSE_ROWS = 0.5
"""The share of the rows of a mixture that have a kind of their own."""
_OF_SLICES = 4
"""One in so many other slices of a mixture has a kind of its own."""
_GOLDEN = (math.sqrt(5) - 1) / 2
_TAIL = 32
_PLACES = 7
_AT_ENDS = 3
"""Places that are taken in turn, the first three at the ends, and others that are spread evenly."""


@dataclass(frozen=True)
class Palette:
    """The values that slices consist of.

    Attributes:
        quiet: draws unremarkable values.
        ends: the lowest and the highest value to plant among them; each is drawn anew.
        far: draws slices of values that are all close to one of the ends, and returns them with
            a value close to the other end for each.
        equals: values of which all elements of a slice may have the same.
        nearest: the value closest to zero, and another one to take the place of such values.
        shrinks: whether a slice may be multiplied by a small number.
        cancels: whether values may have equal magnitudes and opposite signs.
    """

    quiet: Callable[[tuple[int, ...]], Array]
    ends: Callable[[int], tuple[Array, Array]]
    far: Callable[[tuple[int, int]], tuple[Array, Array]]
    equals: Array
    nearest: tuple[Any, Any] | None = None
    shrinks: bool = False
    cancels: bool = False


def put_slices(
    generator: np.random.Generator,
    values: Array,
    palette: Palette,
    starts: npt.NDArray[np.float64],
    *,
    sparse: int,
    whole: bool,
    equal: bool,
    large_columns: bool,
) -> None:
    """Give slices of ``values`` a kind of their own; in a sparse drawing all those of an axis.

    Args:
        generator: the source of random numbers.
        values: the array that is changed.
        palette: the values that slices consist of.
        starts: two numbers between 0 and 1 that shift the places of extremes.
        sparse: the number of a sparse drawing, from 1; 0: a mixture.
        whole: whether the first sparse drawing has a single extreme.
        equal: whether all values of a slice may be the same.
        large_columns: whether some slices of a mixture, other than rows, have large values only.
    """
    views = [view for view in _views(values) if view.shape[-1] > 1] or [values.reshape(-1)]
    if sparse:
        if whole:
            views = [values.reshape(-1), *(view for view in views if view.size > view.shape[-1])]
        visit, number = divmod(sparse - 1, len(views))
        slices = math.prod(views[number].shape[:-1])
        turns = generator.permutation(slices) + visit * slices
        kinds = _LONE if slices == 1 else _MANY if equal else _UNEQUAL
        if slices == 1 and visit >= len(_LONE) and visit % _PLACES >= _AT_ENDS:
            # Each kind has been tried, so that all others show what decides an extreme.
            kinds = (_Slice.BOTH,)
        _write(generator, views[number], np.arange(slices), kinds, turns, palette, starts)
        return
    *others, rows = views
    for view in others:  # few enough to leave most of the rows as they are
        slices, length = math.prod(view.shape[:-1]), view.shape[-1]
        chosen = generator.permutation(slices)[: min(slices, length) // _OF_SLICES]
        _write(generator, view, chosen, _UNEQUAL, np.arange(len(chosen)), palette, starts)
    if others:
        slices = math.prod(rows.shape[:-1])
        chosen = generator.permutation(slices)[: round(_SPARSE_ROWS * slices)]
        _write(generator, rows, chosen, _UNEQUAL, np.arange(len(chosen)), palette, starts)
    if others and large_columns:  # this leaves the largest values of rows as they are
        slices = math.prod(others[0].shape[:-1])
        chosen = generator.permutation(slices)[: slices // (2 * _OF_SLICES)]
        _write(generator, others[0], chosen, (_Slice.FAR,), chosen, palette, starts)


def _views(values: Array) -> Iterator[Array]:
    """Writable views whose last axis runs through slices of ``values``: its rows come last."""
    for axis in range(values.ndim - 1):
        yield np.moveaxis(values, axis, -1)
    for last in range(1, values.ndim - 1):
        yield values.reshape(*values.shape[:last], -1)
    yield values if values.ndim else values.reshape(1)


class _Slice(IntEnum):
    """What a slice has; the first group has it among quiet values."""

    BOTH, HIGH, LOW = 0, 1, 2  # the highest value, the lowest, or both
    TIE, LITTLE = 3, 4  # the highest twice; one that is larger than the others
    UP, DOWN, CANCEL, NEAREST = 5, 6, 7, 8  # an order, alternating signs, one closest to zero
    EQUAL_HIGH, EQUAL_LOW = 9, 10  # the highest or the lowest among equal values
    FAR, FAR_ONE = 11, 12  # values close to one end; these and one at the other end
    EQUAL, SMALL = 13, 14  # equal values only; small values only
    TOGETHER = 15  # the few highest or lowest values where one thread comes by, see `_put_together`


def _cycle(names: str) -> tuple[_Slice, ...]:
    return tuple(_Slice[name] for name in names.split())


_MANY = _cycle(
    "BOTH HIGH EQUAL_HIGH FAR_ONE FAR BOTH TIE TOGETHER LOW EQUAL "
    "FAR SMALL LITTLE TOGETHER EQUAL_LOW UP DOWN CANCEL FAR_ONE NEAREST"
)
"""Kinds of slices, in the order in which they are taken."""
_UNEQUAL = tuple(kind for kind in _MANY if kind != _Slice.EQUAL)
"""The kinds that mixtures may contain. A slice of equal values has no differences between them, so
that rounding alone would decide how the other slices of a mixture are judged."""
_LONE = _cycle(
    "BOTH EQUAL_LOW BOTH BOTH NEAREST BOTH BOTH EQUAL_HIGH EQUAL_HIGH "
    "BOTH BOTH NEAREST EQUAL LITTLE EQUAL_LOW TIE BOTH"
)
"""Kinds of a slice that is the whole tensor, in successive drawings: those of equal values fall on
its ends, see `_places`."""


def _write(
    generator: np.random.Generator,
    view: Array,
    chosen: npt.NDArray[np.int64],
    cycle: tuple[_Slice, ...],
    turns: npt.NDArray[np.int64],
    palette: Palette,
    starts: npt.NDArray[np.float64],
) -> None:
    """Overwrite each of the ``chosen`` slices with values of its kind and with extreme values.

    Args:
        generator: the source of random numbers.
        view: an array whose last axis runs through the slices.
        chosen: the numbers of the slices to overwrite.
        cycle: the kinds that the slices take in turn.
        turns: the turn of each slice.
        palette: the values that slices consist of.
        starts: the starts of the spread places, see `_places`.
    """
    count, length = len(chosen), view.shape[-1]
    if not count:
        return
    kinds = np.array(cycle)[turns % len(cycle)]
    block = palette.quiet((count, length))
    equal = np.isin(kinds, (_Slice.EQUAL_HIGH, _Slice.EQUAL_LOW, _Slice.EQUAL))
    same = palette.equals[generator.integers(len(palette.equals), size=count)]
    if (palette.equals == 0).any():
        same[(kinds == _Slice.EQUAL) & (turns // len(cycle) % 2 == 0)] = 0
    low, high = palette.ends(count)
    for kind, end, other in ((_Slice.EQUAL_HIGH, high, low), (_Slice.EQUAL_LOW, low, high)):
        same = np.where((kinds == kind) & (same == end), other, same)
    block[equal] = same[equal, None]
    if palette.shrinks:
        block[(kinds == _Slice.LITTLE) | (kinds == _Slice.SMALL)] *= 2.0**-10
    for kind, step in ((_Slice.UP, 1), (_Slice.DOWN, -1)):
        block[kinds == kind] = np.sort(block[kinds == kind], axis=-1)[:, ::step]
    if palette.cancels:
        alternating = 1.0 - np.arange(length) % 2 * 2
        block[kinds == _Slice.CANCEL] = np.multiply.outer(same[kinds == _Slice.CANCEL], alternating)
    places, others = _places(generator, turns, length, starts)
    near = kinds == _Slice.NEAREST
    if palette.nearest is not None:
        closest, other = palette.nearest
        block[near] = np.where(np.abs(block[near]) < 0.5, other, block[near])
        block[near, places[near]] = closest
    far = np.isin(kinds, (_Slice.FAR, _Slice.FAR_ONE))
    opposite = np.zeros(count, block.dtype)
    block[far], opposite[far] = palette.far((int(far.sum()), length))
    in_turn = np.argsort(turns, kind="stable")
    together = in_turn[kinds[in_turn] == _Slice.TOGETHER]
    _put_together(generator, block, together, low, high)
    ordinary = palette.quiet((count,))
    rows = np.arange(count)
    for value, where, which in (
        (low, others, (_Slice.BOTH,)),
        (low, places, (_Slice.LOW, _Slice.EQUAL_LOW)),
        (high, places, (_Slice.BOTH, _Slice.HIGH, _Slice.EQUAL_HIGH, _Slice.TIE)),
        (high, others, (_Slice.TIE,)),
        (ordinary, places, (_Slice.LITTLE, _Slice.CANCEL)),
        (opposite, places, (_Slice.FAR_ONE,)),
    ):
        mine = np.isin(kinds, which)
        block[rows[mine], where[mine]] = value[mine]
    view[np.unravel_index(chosen, view.shape[:-1]) if view.ndim > 1 else ...] = (
        block if view.ndim > 1 else block[0]
    )


class _Group(NamedTuple):
    """Values that `_put_together` places: how many, and how.

    Attributes:
        size: how many there are.
        best_last: whether the highest (or lowest) of them comes last.
        equal: whether they come in pairs of equal ones.
        lowest: whether they are the lowest values of a slice rather than the highest.
        neighbours: whether they are adjacent rather than far apart.
    """

    size: int
    best_last: bool = False
    equal: bool = False
    lowest: bool = False
    neighbours: bool = False


_GROUPS = (
    _Group(2, equal=True),
    _Group(2, best_last=True),
    _Group(5),
    _Group(2, best_last=True, neighbours=True),
    _Group(2, best_last=True, lowest=True),
    _Group(3, equal=True),
    _Group(2),
    _Group(8, best_last=True),
    _Group(2, equal=True, lowest=True),
    _Group(5, equal=True, neighbours=True),
    _Group(3, lowest=True),
)
"""The groups that slices of the kind `_Slice.TOGETHER` take in turn."""


def _put_together(
    generator: np.random.Generator,
    block: Array,
    rows: npt.NDArray[np.int64],
    low: Array,
    high: Array,
) -> None:
    """Put the few highest or lowest values of each row where one thread comes by.

    Threads that keep fewer candidates than are selected, or drop one when they find the next, lose
    some of these. The distance is a power of two as large as there is room for, so that it is a
    multiple of the number of threads.

    Args:
        generator: the source of random numbers.
        block: the slices, one a row.
        rows: the rows to change, which take `_GROUPS` in turn.
        low: the lowest value for each row of the block.
        high: the highest one.
    """
    length = block.shape[1]
    if block.dtype.kind == "b" or not rows.size:
        return
    for number, group in enumerate(_GROUPS):
        mine = rows[number :: len(_GROUPS)]
        if not mine.size or length < group.size:
            continue
        room = (length - 1) // (group.size - 1)
        distance = 1 << min(room.bit_length() - 1, _MOST_THREADS_BITS)
        if group.neighbours:
            distance = 1
        first = generator.integers(length - (group.size - 1) * distance, size=mine.size)
        bottom: Any = low[mine]
        top: Any = high[mine]
        for rank in range(group.size):
            place = group.size - 1 - rank if group.best_last else rank
            lower = rank // 2 if group.equal else rank
            if block.dtype.kind == "f":
                part = (top - bottom) * (lower / 64)
            else:
                part = min(lower, int(high[0]) - int(low[0]))
            values = bottom + part if group.lowest else top - part
            block[mine, first + distance * place] = values


def _places(
    generator: np.random.Generator,
    turns: npt.NDArray[np.int64],
    length: int,
    starts: npt.NDArray[np.float64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Two places in each slice: the last, the first, in the tail, and then spread evenly.

    `_TAIL` successive turns reach `_TAIL` parts of a slice, and places with every remainder of a
    division by `_TAIL`. So an extreme value soon falls to any thread, lane or step of a loop whose
    share a kernel leaves out.

    Args:
        generator: the source of random numbers for places in the tail.
        turns: the turn of each slice.
        length: the length of a slice.
        starts: numbers between 0 and 1 that shift the places which are spread evenly.
    """
    cycle, turn = np.divmod(turns, _PLACES)
    turns = cycle * (_PLACES - _AT_ENDS) + np.maximum(turn - _AT_ENDS, 0)
    tail = length - 1 - generator.integers(min(length, _TAIL), size=len(turns))
    spread = ((turns * _GOLDEN + starts[:, None]) % 1 * length).astype(np.int64)
    lanes = (turns * 13 + (starts[:, None] * _TAIL).astype(np.int64)) % _TAIL
    spread = spread // _TAIL * _TAIL + lanes
    spread = np.where(spread < length, spread, spread % length)
    first, second = (
        np.select([turn == 0, turn == 1, turn == 2], [length - 1 - step, step, tail], there)
        for step, there in zip((0, min(1, length - 1)), spread, strict=True)
    )
    second = np.where(first == second, (first + 1) % length, second)
    swapped = cycle % 2 == 1
    return np.where(swapped, second, first), np.where(swapped, first, second)
