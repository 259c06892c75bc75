"""The page's data in few bytes: measurements by column, each text once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_DIGITS = 7


def compact(data: Mapping[str, Any]) -> dict[str, Any]:
    """``data`` with its rows and axes as columns; `data.js` has the way back."""
    rows = data["rows"]
    names = list(rows[0]) if rows else []
    columns = {name: column([row[name] for row in rows]) for name in names}
    axes = [{**one, "values": column(one["values"])} for one in data["axes"]]
    return {**data, "rows": {"count": len(rows), "columns": columns}, "axes": axes}


def column(values: Sequence[Any]) -> Any:
    """The values of a column: of texts, each once and the places where they are."""
    if not values or not all(isinstance(one, str) for one in values):
        return [_rounded(one) for one in values]
    words = {word: place for place, word in enumerate(dict.fromkeys(values))}
    return {"words": list(words), "at": [words[one] for one in values]}


def _rounded(value: Any) -> Any:
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value
