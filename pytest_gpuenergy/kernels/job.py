"""The `Job`: what to run on which inputs and how, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pytest_gpuenergy.kernels.kernel import AnyKernel
from pytest_gpuenergy.workloads import IoContract, Scalar, Workload

CacheState = Literal["hot", "cold"]
"""``hot``: all launches use the same buffers, so whatever fits in the L2 cache is there.
``cold``: each launch uses other buffers, so nothing in them is in the L2 cache."""

CACHE_STATES: tuple[CacheState, ...] = ("hot", "cold")


@dataclass(frozen=True)
class Job:
    """A kernel of a workload, with everything a device needs to run it.

    It can be pickled and written to disk: any process can run it, without the project it is from.

    Attributes:
        kernel: the kernel to run.
        io: the tensors and scalars it computes on.
        seed: the seed of the inputs.
        cache: the state of the L2 cache when the kernel runs back to back.
        timeout_s: the most time for one run, and for each step of running back to back.
        apart: whether the figures are to be kept. The kernel then runs in a process that has run no
            other kernel back to back, so that earlier measurements have no influence, and on
            several sets of buffers in rotation, each for some milliseconds, so that the result does
            not depend on one place in memory. An emulated GPU has neither effect.
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
        """Return the job of running ``kernel`` on ``workload``."""
        return cls(kernel, workload.io, seed, cache, timeout_s, apart)

    @property
    def scalars(self) -> Mapping[str, Scalar]:
        """The scalars, by name."""
        return {scalar.name: scalar for scalar in self.io.scalars}
