"""Work that a caller has made ready to be measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from pytest_gpuenergy.devices import Repeater
from pytest_gpuenergy.record import WorkloadInfo


@dataclass(frozen=True)
class Replayable:
    """Work whose repeater is at hand; `Harness.measure_callable` measures it.

    Attributes:
        key: what its maker calls it.
        label: of what does the work, for the record.
        workload: as the record is to describe it.
        repeater: makes what launches it.
        details: of what does the work, for the record.
        together: whether other processes have to measure it at the same time.
    """

    key: str
    label: str
    workload: WorkloadInfo
    repeater: Callable[[], AbstractContextManager[Repeater]]
    details: Mapping[str, str | int | float] = field(default_factory=dict)
    together: bool = False
