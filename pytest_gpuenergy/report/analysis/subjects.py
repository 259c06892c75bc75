"""The subjects of measurements, their order in reports, and the ids by which users name them.

A bench may give contracts of several sizes one name. Their figures are of different work, so they
are told apart, and no best is chosen among them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from math import inf

from pytest_gpuenergy.record import Measurement, Order, WorkloadInfo, setpoint_order


class Subjects:
    """The names of the workloads of a report.

    Args:
        measurements: all that are shown together.
    """

    def __init__(self, measurements: Iterable[Measurement]) -> None:
        works: dict[str, dict[_Key, dict[str, int | str]]] = {}
        for m in measurements:
            key = parameters, flops = _key(m.workload)
            works.setdefault(m.workload.name, {})[key] = {**dict(parameters), "FLOP": flops}
        self._names: dict[tuple[str, _Key], str] = {}
        for name, several in works.items():
            if len(several) == 1:
                continue
            # The value that tells each of them from the others, or all that differ.
            counts = {
                parameter: len({values.get(parameter) for values in several.values()})
                for parameter in dict.fromkeys(
                    value for values in several.values() for value in values
                )
            }
            chosen = [parameter for parameter, count in counts.items() if count == len(several)][:1]
            chosen = chosen or [parameter for parameter, count in counts.items() if count > 1]
            for key, values in several.items():
                words = " ".join(f"{word} {values.get(word, 'none')}" for word in chosen)
                self._names[name, key] = f"{name} ({words})"

    def name(self, m: Measurement) -> str:
        """Return the workload's name: ``scale``, or ``scale (x float32[4096])`` if it is shared."""
        name = m.workload.name
        return self._names.get((name, _key(m.workload)), name) if self._names else name

    def of(self, m: Measurement) -> str:
        """Return the name, followed by the cache state when it is ``cold``."""
        return with_cache(self.name(m), m)

    @property
    def shared(self) -> list[str]:
        """The names that stand for several workloads."""
        return list(dict.fromkeys(name for name, _ in self._names))


def with_cache(name: str, m: Measurement) -> str:
    """``name``, followed by the cache state of a measurement when it is ``cold``."""
    return name if m.cache in ("hot", "unknown") else f"{name}, {m.cache}"


_Key = tuple[tuple[tuple[str, int | str], ...], int]
"""The sorted parameters and the operations that make two workloads the same work."""


def _key(workload: WorkloadInfo) -> _Key:
    return tuple(sorted(workload.parameters.items())), workload.flops


_MIN_DIGEST = 8
_OPERATORS = ("and", "or", "not")
_WORD = re.compile(r"[\w:+.\[\]\\/-]+")
"""A word by the rules of pytest's ``-k``."""


def shown_ids(m: Measurement) -> Iterator[str]:
    """Yield the ids by which a view shows a measurement, from the whole item to the workload.

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
    """Return whether ``word`` is one of the `shown_ids` or begins the kernel's hash."""
    if len(word) >= _MIN_DIGEST and m.kernel.digest.startswith(word.lower()):
        return True
    return word.casefold() in map(str.casefold, shown_ids(m))


def with_item_names(expression: str, measurements: Sequence[Measurement]) -> str:
    """Return an expression for ``-k`` with items' names in place of other ids of ``measurements``.

    ``scale-b128-200W`` becomes ``(test_scale[b128-200W])``. A word stays as it is if it is no id,
    or if it is part of an item's id, since it then selects that item anyway.
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


def group(measurements: Iterable[Measurement]) -> dict[tuple[str, str], list[Measurement]]:
    """Return measurements by workload and setpoint, in the order of `ordered`."""
    listed = ordered(measurements)
    subjects = Subjects(listed)
    groups: dict[tuple[str, str], list[Measurement]] = {}
    for m in listed:
        groups.setdefault((subjects.name(m), m.cap), []).append(m)
    return groups


def ordered(measurements: Iterable[Measurement]) -> list[Measurement]:
    """Return by workload in order of appearance, then by setpoint (`setpoint_order`) and rank.

    A run's own order is not useful to a reader, because it interleaves caps and kernels.
    """
    listed = list(measurements)
    subjects = Subjects(listed)
    places: dict[str, int] = {}
    for m in listed:
        places.setdefault(subjects.name(m), len(places))

    def place(m: Measurement) -> tuple[int, Order, float]:
        rank = m.kernel.rank
        return (places[subjects.name(m)], setpoint_order(m), inf if rank is None else rank)

    return sorted(listed, key=place)
