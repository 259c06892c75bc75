"""How a report describes a workload and a kernel."""

from __future__ import annotations

from msgspec import Struct, field


class WorkloadInfo(Struct, frozen=True):
    """The workload that was measured; ``flops`` and ``bytes_moved`` are for one launch."""

    name: str
    parameters: dict[str, int | str]
    flops: int
    bytes_moved: int


class KernelInfo(Struct, frozen=True):
    """The kernel that was measured: its label in item ids, content hash, origin and rank."""

    label: str
    digest: str
    origin: str
    rank: int | None = None
    details: dict[str, str | int | float] = field(default_factory=dict)
