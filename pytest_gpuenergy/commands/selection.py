"""The measurements that ``--case`` and ``--network`` choose from a report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from pytest_gpuenergy.record import Measurement
from pytest_gpuenergy.report import is_named
from pytest_gpuenergy.support import InputError
from pytest_gpuenergy.workloads import ALL, CASES, check_named, network, numbered_case, split_words

_MOST_NAMES = 12


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
    words = [*whole, *split_words([text for text in cases if text not in whole])]
    for word in words:
        chosen |= _found(measurements, _of_word(word.strip()), word)
    for word in split_words(networks):
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
