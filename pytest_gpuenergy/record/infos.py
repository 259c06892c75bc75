"""What a report says of a workload and of a kernel."""

from __future__ import annotations

from msgspec import Struct, field


class WorkloadInfo(Struct, frozen=True):
    """Which workload was measured; ``flops`` and ``bytes_moved`` are of one run."""

    name: str
    parameters: dict[str, int | str]
    flops: int
    bytes_moved: int


class KernelInfo(Struct, frozen=True):
    """Which kernel was measured: its label in item ids, its content's hash, where it is from."""

    label: str
    digest: str
    origin: str
    rank: int | None = None
    details: dict[str, str | int | float] = field(default_factory=dict)
