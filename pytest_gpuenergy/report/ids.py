"""The ids by which reports, tables and pages show a measurement."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_gpuenergy.record.measurement import Measurement

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
