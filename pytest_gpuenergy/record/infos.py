"""How a report describes a workload and a kernel."""

from __future__ import annotations

import math

from msgspec import Struct, field

from pytest_gpuenergy.record.amounts import Bytes, Count, Extent, Whole


class WorkloadInfo(Struct, frozen=True):
    """The workload that was measured; ``flops`` and ``bytes_moved`` are for one launch."""

    name: str
    parameters: dict[str, Whole | str]
    flops: Count
    bytes_moved: Count


class LaunchInfo(Struct, frozen=True, gc=False):
    """A launch of a kernel: its entry, blocks in x, y and z, and the threads of a block.

    ``shared_bytes`` is the dynamic shared memory of a block (None: the compiler decides),
    ``static_shared_bytes`` what its text declares (None: not known).
    """

    entry: str
    grid: tuple[Extent, Extent, Extent]
    block: tuple[Extent, Extent, Extent]
    shared_bytes: Bytes | None = None
    static_shared_bytes: Bytes | None = None

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return math.prod(self.grid)

    @property
    def threads(self) -> int:
        """The threads of a block."""
        return math.prod(self.block)


class KernelInfo(Struct, frozen=True):
    """The kernel that was measured: its label in item ids, content hash, origin and rank.

    ``launches`` are in the order in which they follow each other; none where a library or a program
    decides, and in older records.
    """

    label: str
    digest: str
    origin: str
    rank: Whole | None = None
    details: dict[str, str | Whole | float] = field(default_factory=dict)
    launches: tuple[LaunchInfo, ...] = ()
