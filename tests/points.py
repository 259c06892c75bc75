"""At which points a test is run each time, and at which only in the nightly run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import pytest

Axis = Iterable[Any] | Mapping[str, Any]
"""Values, or by their ids; a tuple is the values of several parameters."""
MORE = partial(pytest.param, marks=pytest.mark.thorough)
"""A point that only the nightly run has, because another one nearly shows the same."""


def each_once(first: Axis, second: Axis) -> list[Any]:
    """All pairs, as parameters of both; all but those that show each value once are thorough."""
    rows, columns = list(_named(first)), list(_named(second))
    shown = {(k % len(rows), k % len(columns)) for k in range(max(len(rows), len(columns)))}
    return [
        pytest.param(
            *one,
            *other,
            id=f"{name}-{other_name}",
            marks=[] if (row, column) in shown else [pytest.mark.thorough],
        )
        for row, (name, one) in enumerate(rows)
        for column, (other_name, other) in enumerate(columns)
    ]


def nightly(names: Iterable[str], similar: Collection[str]) -> list[Any]:
    """All names, as parameters; those that show what others nearly show are thorough.

    Raises:
        ValueError: a similar one is not among the names.
    """
    names = list(names)
    if unknown := set(similar).difference(names):
        raise ValueError(f"{min(unknown)} is no point of the test")
    thorough = [pytest.mark.thorough]
    return [pytest.param(name, marks=thorough if name in similar else []) for name in names]


def _named(axis: Axis) -> Iterator[tuple[str, tuple[Any, ...]]]:
    named = axis.items() if isinstance(axis, Mapping) else ((None, value) for value in axis)
    for place, (name, value) in enumerate(named):
        values = value if isinstance(value, tuple) else (value,)
        short = all(isinstance(one, str | int | float) for one in values)
        yield name or ("-".join(map(str, values)) if short else str(place)), values
