"""A device that runs Python functions in place of kernels."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_gpuenergy.devices import (
    Arena,
    Device,
    DeviceArrays,
    KernelRepeater,
    Loaded,
    Threshold,
)
from pytest_gpuenergy.kernels import AnyKernel, Job, Kernel, Launch

Body = Callable[..., None]
"""Gets a writable array of each tensor, by name."""

KERNEL = Kernel("__global__ void f() {}", (Launch("f", (1, 1, 1), (1, 1, 1), ()),))


class PythonDevice(Device):
    """Runs ``body`` whatever the kernel, in one process with what earlier runs have left."""

    name, uuid, architecture = "Python", "GPU-python", "sm_90"

    def __init__(
        self,
        body: Body,
        *,
        emulated: bool = False,
        arrays: DeviceArrays | None = None,
        thresholds: Collection[Threshold] = (),
    ) -> None:
        self.thresholds = thresholds
        self.body, self.emulated = body, emulated
        self.runs = 0
        self._arrays = arrays

    @property
    def arrays(self) -> DeviceArrays | None:
        return self._arrays

    def prepare(self, kernels: Sequence[AnyKernel]) -> None:
        raise NotImplementedError

    def compile(self, kernel: AnyKernel) -> None:
        raise NotImplementedError

    @contextmanager
    def load(self, job: Job, arenas: Mapping[str, Arena]) -> Iterator[Loaded]:
        del job
        yield _Body(self, arenas)

    def repeat(
        self, job: Job, arenas: Mapping[str, Arena]
    ) -> AbstractContextManager[KernelRepeater]:
        raise NotImplementedError

    def describe(self) -> dict[str, str]:
        return {}

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class _Body:
    device: PythonDevice
    arenas: Mapping[str, Arena]

    @property
    def thresholds(self) -> Collection[Threshold]:
        return self.device.thresholds

    @property
    def unread(self) -> Mapping[str, Sequence[tuple[int, int]]]:
        return {}

    def run(self, order_seed: int = 0) -> None:
        del order_seed
        arrays: dict[str, Any] = {}
        for name, arena in self.arenas.items():
            there = arena.memory.arrays
            with there.used():
                arrays[name] = np.array(there.get(arena.elements()))
        with np.errstate(all="ignore"):
            self.device.body(**arrays)
        for name, arena in self.arenas.items():
            arena.fill(arrays[name])
        self.device.runs += 1

    def relaunch(self, *, once: bool) -> Iterator[int]:
        """Nothing, as on a real GPU before the measurement."""
        del once
        yield from ()
