"""Where the states of a search are drawn: one column further than the state they were made from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple


class Place(NamedTuple):
    """A place in a drawing, in columns and rows from the upper left corner."""

    column: int
    row: float


def places(parents: Mapping[str, str | None]) -> dict[str, Place]:
    """A place for each state, so that no two are at the same one.

    Rows are counted along the leaves, and a state is in the middle of what was made from it. A
    state whose parent is missing is drawn as a root.

    Args:
        parents: by the id of the state, parents before their children.
    """
    children: defaultdict[str | None, list[str]] = defaultdict(list)
    columns: dict[str, int] = {}
    for state, parent in parents.items():
        known = parent if parent in columns else None
        children[known].append(state)
        columns[state] = 0 if known is None else columns[known] + 1
    rows: dict[str, float] = {}
    leaves = 0
    waiting = [(root, False) for root in reversed(children[None])]
    while waiting:
        state, is_left = waiting.pop()
        below = children.get(state, [])
        if not below:
            rows[state] = leaves
            leaves += 1
        elif is_left:
            rows[state] = (rows[below[0]] + rows[below[-1]]) / 2
        else:
            waiting.append((state, True))
            waiting += [(child, False) for child in reversed(below)]
    return {state: Place(columns[state], rows[state]) for state in parents}
