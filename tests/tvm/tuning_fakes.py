# ruff: noqa: ARG002 -- a device is told more than this one needs
"""A device without hardware: its kernels take a time given by their text, or fail on demand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

import numpy as np

from pytest_gpuenergy.devices.device import Arena, Device, KernelRepeater, Loaded, Timeline, Work
from pytest_gpuenergy.kernels.kernel import Kernel
from pytest_gpuenergy.workloads.workload import Scalar


class VirtualClock:
    def __init__(self) -> None:
        self.now = 100.0

    def now_s(self) -> float:
        return self.now

    def sleep_s(self, duration_s: float) -> None:
        self.now += duration_s


class FakeNvml:
    """A card that does not tell its energy, and tells its limit if it is given one."""

    def __init__(self, limit_w: float | None = None) -> None:
        self.limit_w = limit_w

    class NVMLError(Exception):
        pass

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: object) -> int:  # noqa: N802
        if self.limit_w is None:
            raise self.NVMLError
        return round(1e3 * self.limit_w)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: object) -> int:  # noqa: N802
        raise self.NVMLError


class FakeDevice(Device):
    name = "NVIDIA H200"
    uuid = "GPU-00000000-0000-0000-0000-000000000000"
    architecture = "sm_90"
    emulated = True
    nvml = FakeNvml()
    handle = None

    def __init__(self, time_ms: Callable[[Kernel], float]) -> None:
        self.clock = VirtualClock()
        self.time_ms = time_ms
        self.prepared: list[str] = []
        self.timed: list[str] = []

    def prepare(self, kernels: Sequence[Kernel]) -> None:
        self.prepared += [kernel.digest for kernel in kernels]

    def compile(self, kernel: Kernel) -> None:
        raise AssertionError("the search compiles ahead")

    def load(
        self,
        kernel: Kernel,
        arenas: Mapping[str, Arena],
        scalars: Mapping[str, Scalar],
        *,
        timeout_s: float,
    ) -> AbstractContextManager[Loaded]:
        raise AssertionError("the search must not verify")

    @contextmanager
    def repeat(
        self,
        kernel: Kernel,
        arenas: Mapping[str, Arena],
        scalars: Mapping[str, Scalar],
        *,
        work: Work | None,
        timeout_s: float,
    ) -> Iterator[KernelRepeater]:
        self.timed.append(kernel.digest)
        assert {n for launch in kernel.launches for n in launch.arguments} <= set(arenas)
        yield FakeRepeater(self.clock, self.time_ms(kernel) / 1e3)

    def describe(self) -> dict[str, str]:
        return {"driver": "580.0"}

    def close(self) -> None:
        pass


class FakeRepeater:
    def __init__(self, clock: VirtualClock, launch_s: float) -> None:
        self._clock = clock
        self._launch_s = launch_s
        self._began_s = 0.0

    def start(self) -> None:
        self._began_s = self._clock.now_s()

    def stop(self) -> Timeline:
        count = max(1, round((self._clock.now_s() - self._began_s) / self._launch_s / 4))
        launches = count * np.arange(5.0)
        busy_s = launches * self._launch_s
        return Timeline(self._began_s + busy_s, launches, busy_s)


def time_by_digest(kernel: Kernel) -> float:
    """From 0.1 to 1.1 ms, evenly by the kernel's hash."""
    return 0.1 + int(kernel.digest[:8], 16) / 2**32


def record_of(word: str) -> str:
    """A MetaSchedule record without a time, of a made-up schedule that is known by ``word``."""
    trace = [[["GetSBlock", [], [word, "main"], ["b0"]]], []]
    return json.dumps([trace, [1.0], {"kind": "cuda"}, [["TENSOR", "float32", [1]]]])
