"""Chooses measurements by the ids that reports, tables and pages show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from pytest_gpuenergy.record.measurement import Measurement
from pytest_gpuenergy.support.errors import InputError
from pytest_gpuenergy.workloads.table import (
    ALL,
    CASES,
    check_named,
    network,
    numbered_case,
    words_of,
)

_MOST_NAMES = 12
_LEAST_DIGEST = 8


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


def select(
    measurements: Sequence[Measurement],
    cases: Sequence[str],
    networks: Sequence[str],
    root: Path,
) -> tuple[Measurement, ...]:
    """The measurements that ``--case`` and ``--network`` name; all if neither is given.

    Args:
        measurements: to choose from; their order is kept.
        cases: ids, names of workloads, ``5`` for ``case5``, or ``all`` for the seven cases.
        networks: names of networks, see `workloads.table.network`.
        root: the project's folder.

    Raises:
        InputError: a word names none of them.
    """
    if not cases and not networks:
        return tuple(measurements)
    check_named(cases, networks)
    chosen: set[int] = set()
    whole = [text for text in cases if any(is_named(m, text.strip()) for m in measurements)]
    words = [*whole, *words_of([text for text in cases if text not in whole])]
    for word in words:
        chosen |= _found(measurements, _of_word(word.strip()), word)
    for word in words_of(networks):
        names = {workload.name for workload in network(word, root)}
        chosen |= _found(measurements, _among(names), word)
    return tuple(m for i, m in enumerate(measurements) if i in chosen)


def _of_word(word: str) -> Callable[[Measurement], bool]:
    if word == ALL:
        return _among(CASES)
    return lambda m: is_named(m, word) or m.workload.name == numbered_case(word)


def _among(names: Iterable[str]) -> Callable[[Measurement], bool]:
    known = frozenset(names)
    return lambda m: m.workload.name in known


def _found(
    measurements: Sequence[Measurement], named: Callable[[Measurement], bool], word: str
) -> set[int]:
    found = {i for i, m in enumerate(measurements) if named(m)}
    if not found:
        names = [*dict.fromkeys(m.workload.name for m in measurements)]
        if len(names) > _MOST_NAMES:
            names = [*names[:_MOST_NAMES], f"{len(names) - _MOST_NAMES} more"]
        known = ", ".join(names) or "nothing"
        raise InputError(f"Nothing in this report is called {word[:80]!r}: it has {known}.")
    return found
