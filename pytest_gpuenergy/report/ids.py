"""The ids by which reports, tables and pages show a measurement."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pytest_gpuenergy.record import Measurement

_LEAST_DIGEST = 8
_OPERATORS = ("and", "or", "not")
_WORD = re.compile(r"[\w:+.\[\]\\/-]+")
"""What pytest's ``-k`` takes for a word."""


def ids_of(m: Measurement) -> Iterator[str]:
    """The ids by which a view shows a measurement, from the whole item to the workload.

    ``bench/a.py::test_a[case1-k01-300W]``, ``test_a[case1-k01-300W]``, ``case1-k01-300W``,
    ``case1-k01``, ``k01`` and ``case1``.
    """
    yield m.node_id
    name = m.node_id.rpartition("::")[2]
    yield name
    if name.endswith("]") and "[" in name:
        yield name[name.index("[") + 1 : -1]
    workload, label = m.workload.name, m.kernel.label
    for separator in ("-", "/"):
        yield separator.join((workload, label, m.cap))
        yield separator.join((workload, label))
    yield f"{workload}-{label}-{m.cap}-{m.cache}"
    yield f"{label}-{m.cap}"
    yield f"{label} at {m.cap}"
    yield label
    yield workload


def is_named(m: Measurement, word: str) -> bool:
    """Whether ``word`` is one of the `ids_of` a measurement, or begins its kernel's hash."""
    if len(word) >= _LEAST_DIGEST and m.kernel.digest.startswith(word.lower()):
        return True
    return word.casefold() in map(str.casefold, ids_of(m))


def with_item_names(expression: str, measurements: Sequence[Measurement]) -> str:
    """An expression for ``-k`` with items' names in place of other ids of ``measurements``.

    ``scale-b128-200W`` becomes ``(test_scale[b128-200W])``. A word that is part of an item's id
    stays, since it selects that item anyway, as does one that is no id.
    """

    def named(match: re.Match[str]) -> str:
        word = match[0]
        part = any(word.casefold() in m.node_id.casefold() for m in measurements)
        if part or word.casefold() in _OPERATORS:
            return word
        names = [m.node_id.rpartition("::")[2] for m in measurements if is_named(m, word)]
        names = [name for name in dict.fromkeys(names) if _WORD.fullmatch(name)]
        return f"({' or '.join(names)})" if names else word

    return _WORD.sub(named, expression)
