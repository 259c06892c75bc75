"""What a search does with its candidates: lower, compile and time them. Knows modules, not TVM."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from threading import Event
from typing import Any

from pytest_gpuenergy.devices.device import Arena, Device
from pytest_gpuenergy.errors import KernelFault
from pytest_gpuenergy.kernels.kernel import Kernel
from pytest_gpuenergy.tuning.journal import Journal
from pytest_gpuenergy.tuning.timing import measure_time_ms
from pytest_gpuenergy.workloads.workload import Workload

INTERRUPTED = "interrupted"
"""The message of candidates that were not tried, because the search was told to stop."""


@dataclass(frozen=True)
class Built:
    """An artifact's name, or the message of what went wrong."""

    artifact: str | None
    message: str | None


@dataclass(frozen=True)
class Timed:
    """A time in seconds, or the message of what went wrong."""

    time_s: float | None
    message: str | None


class Workbench:
    """Lowers, compiles and times candidates.

    Lowering takes threads, since TVM works outside Python's lock; the device compiles in parallel
    in the background; timing is one after the other.

    Args:
        device: where candidates run.
        workload: what they compute.
        arenas: its tensors.
        journal: where every trial's end is written.
        lower: from a scheduled module to a kernel; called in threads.
        threads: how many of them.
        stop: when set, what is left is not tried any more.
    """

    def __init__(
        self,
        device: Device,
        workload: Workload,
        arenas: Mapping[str, Arena],
        journal: Journal,
        lower: Callable[[Any], Kernel],
        threads: int,
        stop: Event,
    ) -> None:
        self._device = device
        self._workload = workload
        self._arenas = arenas
        self._journal = journal
        self._lower = lower
        self._threads = threads
        self._stop = stop
        self._kernels: dict[str, Kernel] = {}
        self._number = 0

    def build(self, modules: Sequence[Any]) -> list[Built]:
        """Lower ``modules`` and begin to compile each as soon as it is lowered."""
        results: dict[int, Built] = {}
        with ThreadPoolExecutor(self._threads, thread_name_prefix="lower") as pool:
            futures = {pool.submit(self._try_lower, m): i for i, m in enumerate(modules)}
            for future in as_completed(futures):
                outcome = future.result()
                if isinstance(outcome, Kernel):
                    self._device.prepare([outcome])
                    results[futures[future]] = Built(self._keep(outcome), None)
                elif isinstance(outcome, KernelFault):
                    self._journal.add(outcome.outcome, message=str(outcome))
                    results[futures[future]] = Built(None, str(outcome))
                else:
                    results[futures[future]] = Built(None, INTERRUPTED)
        return [results[index] for index in range(len(modules))]

    def time(self, artifacts: Sequence[str]) -> Iterator[Timed]:
        """The time of each artifact; it is not known afterwards."""
        for artifact in artifacts:
            yield self._time(self._kernels.pop(artifact))

    def _keep(self, kernel: Kernel) -> str:
        name = f"candidate-{self._number}"
        self._number += 1
        self._kernels[name] = kernel
        return name

    def _try_lower(self, module: Any) -> Kernel | KernelFault | None:
        if self._stop.is_set():
            return None
        try:
            return self._lower(module)
        except KernelFault as fault:
            return fault

    def _time(self, kernel: Kernel) -> Timed:
        if self._stop.is_set():
            return Timed(None, INTERRUPTED)
        try:
            time_ms = measure_time_ms(self._device, kernel, self._workload, self._arenas)
        except KernelFault as fault:
            self._journal.add(fault.outcome, message=str(fault), digest=kernel.digest)
            return Timed(None, str(fault))
        self._journal.add("timed", time_ms=time_ms, digest=kernel.digest)
        return Timed(time_ms / 1e3, None)
