"""What measurements are of: workloads by name, told apart where a name stands for several.

A bench may give contracts of several sizes one name. Their figures are of different work, and no
best is among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pytest_gpuenergy.record import Measurement, WorkloadInfo


class Subjects:
    """The names of the workloads of a report.

    Args:
        measurements: all that are shown together.
    """

    def __init__(self, measurements: Iterable[Measurement]) -> None:
        works: dict[str, dict[_Work, None]] = {}
        for m in measurements:
            works.setdefault(m.workload.name, {}).setdefault(_Work.of(m.workload))
        self._names = {
            (name, work): f"{name} ({words})"
            for name, several in works.items()
            if len(several) > 1
            for work, words in _differences([*several]).items()
        }

    def name(self, m: Measurement) -> str:
        """The workload's name: ``scale``, or ``scale (x float32[4096])`` where there are others."""
        name = m.workload.name
        return self._names.get((name, _Work.of(m.workload)), name) if self._names else name

    def of(self, m: Measurement) -> str:
        """The name, followed by the cache state when it is ``cold``."""
        return with_cache(self.name(m), m)

    @property
    def shared(self) -> list[str]:
        """The names that stand for several workloads."""
        return list(dict.fromkeys(name for name, _ in self._names))


def with_cache(name: str, m: Measurement) -> str:
    """``name``, followed by the cache state of a measurement when it is ``cold``."""
    return name if m.cache in ("hot", "unknown") else f"{name}, {m.cache}"


class _Work(NamedTuple):
    """What makes two workloads the same work."""

    parameters: tuple[tuple[str, int | str], ...]
    flops: int

    @classmethod
    def of(cls, workload: WorkloadInfo) -> _Work:
        return cls(tuple(sorted(workload.parameters.items())), workload.flops)

    @property
    def values(self) -> dict[str, int | str]:
        return {**dict(self.parameters), "FLOP": self.flops}


def _differences(works: list[_Work]) -> Mapping[_Work, str]:
    """The value that tells each of ``works`` from the others, or all in which they differ."""
    values = [work.values for work in works]
    names = list(dict.fromkeys(name for one in values for name in one))
    counts = {name: len({one.get(name) for one in values}) for name in names}
    chosen = [name for name in names if counts[name] == len(works)][:1]
    chosen = chosen or [name for name in names if counts[name] > 1]
    return {
        work: " ".join(f"{name} {one.get(name, 'none')}" for name in chosen)
        for work, one in zip(works, values, strict=True)
    }
