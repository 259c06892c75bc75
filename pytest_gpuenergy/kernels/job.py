"""The `Job`: what is run on which inputs and how, as one value without functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pytest_gpuenergy.kernels.kernel import AnyKernel
from pytest_gpuenergy.workloads.workload import IoContract, Scalar, Workload

CacheState = Literal["hot", "cold"]
"""``hot``: launch after launch takes the same buffers, so that what fits in the L2 is there.
``cold``: each launch takes other buffers, so that nothing of them is in the L2."""

CACHE_STATES: tuple[CacheState, ...] = ("hot", "cold")


@dataclass(frozen=True)
class Job:
    """A kernel of a workload, with all that a device has to know to run it.

    It can be pickled and written to disk: any process can run it, without the project it is from.

    Attributes:
        kernel: what to run.
        io: what it computes on.
        seed: of the inputs.
        cache: state of the L2 cache when it is run back to back.
        timeout_s: for one run, and for each step of running it back to back.
        apart: measured as a figure that is to be kept: in a process that has run no other kernel
            back to back, so that it does not matter what was measured before; and with several sets
            of buffers that take turns, each for some milliseconds, so that the figure does not
            depend on one place in memory. An emulated GPU has neither of these effects.
    """

    kernel: AnyKernel
    io: IoContract
    seed: int = 0
    cache: CacheState = "hot"
    timeout_s: float = 60.0
    apart: bool = False

    @classmethod
    def of(
        cls,
        kernel: AnyKernel,
        workload: Workload,
        *,
        seed: int = 0,
        cache: CacheState = "hot",
        timeout_s: float = 60.0,
        apart: bool = False,
    ) -> Job:
        """The job of a workload."""
        return cls(kernel, workload.io, seed, cache, timeout_s, apart)

    @property
    def scalars(self) -> Mapping[str, Scalar]:
        """The scalars, by name."""
        return {scalar.name: scalar for scalar in self.io.scalars}
