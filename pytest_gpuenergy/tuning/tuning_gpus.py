"""The GPUs of a tuning: each in a process that times candidates, and one that confirms kernels.

A process has claimed each GPU under its power limit. On an emulated GPU each candidate has a card
of its own, so that its figures do not depend on what ran before.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from typing import Literal, Protocol

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.energy import check_responds
from pytest_gpuenergy.engine import (
    ClaimedGpus,
    Evaluation,
    GpuWorker,
    Harness,
    HostLostError,
    Station,
    Team,
    confirm,
    file_arenas,
    load_arrays,
    lost_twice,
    measure_sustained,
    measure_time_ms,
    verify_timed,
)
from pytest_gpuenergy.kernels import Job, Kernel
from pytest_gpuenergy.support import DeviceError, KernelFault, Outcome
from pytest_gpuenergy.tuning.records import Measured
from pytest_gpuenergy.workloads import Workload

Confirmed = Measured | KernelFault | None
"""The figures of a kernel that is right, None if it has none, or what is wrong with a kernel."""

_TOGETHER = 8
"""The most kernels that are verified at the same time."""
_TOGETHER_BYTES = 1 << 30
"""The most bytes of all their tensors. Verifying takes several copies of these."""


class Confirm(Protocol):
    """Verifies a kernel on a GPU and, if ``energy``, measures it.

    Returns:
        The figures; None if there are none.

    Raises:
        KernelFault: the kernel fails.
        HostLostError: the GPU's host is lost.
        DeviceError: the GPU cannot be used.
    """

    def __call__(self, kernel: Kernel, workload: Workload, *, energy: bool) -> Measured | None: ...


@dataclass(frozen=True)
class StationConfirmer:
    """Confirms kernels on a GPU that this process has claimed, under its present power limit.

    Attributes:
        station: the claimed GPU.
        tell: called with a line about a kernel that is correct but has no figures.
    """

    station: Station
    tell: Callable[[str], None]

    @cached_property
    def _harness(self) -> Harness:
        return self.station.harness()

    def __call__(self, kernel: Kernel, workload: Workload, *, energy: bool) -> Measured | None:
        """See `Confirm`; afterwards the GPU's own process can use it again."""
        device = self.station.device
        try:
            if not energy:
                verify_timed(device, kernel, workload)
                return None
            measurement = confirm(device, self._harness, kernel, workload)
        finally:
            device.renew()
        if (
            measurement.time_ms is None
            or measurement.power_w is None
            or measurement.energy_mj is None
        ):
            self.tell(f"{workload.name}: no energy for {kernel.short_digest}: {measurement.error}")
            return None
        limit_w = measurement.enforced_power_limit_w
        if limit_w is None or measurement.locked_sm_clock_max_mhz is not None:
            return None  # record files contain figures of cards with unlocked clocks only
        return Measured(measurement.time_ms, measurement.power_w, measurement.energy_mj, limit_w)


@dataclass(frozen=True)
class TuningGpus:
    """The GPUs of a tuning, all of one model and claimed.

    Attributes:
        devices: the GPUs, at least one; for GPUs of other hosts, their descriptions.
        confirms: confirms kernels on each of them.
        team: their processes, which time the candidates if there are several GPUs, or if an earlier
            search in the folder had several; None for a single GPU that never had company.
        remote: whether the GPUs are on other hosts, so that only the team can use them.
    """

    devices: tuple[Device, ...]
    confirms: tuple[Confirm, ...]
    team: Team | None = None
    remote: bool = False

    @classmethod
    def of_this_host(cls, gpus: ClaimedGpus, tell: Callable[[str], None]) -> TuningGpus:
        """Return the GPUs that this process has claimed; ``tell`` as in `StationConfirmer`."""
        confirms = tuple(StationConfirmer(station, tell) for station in gpus.stations)
        return cls(gpus.devices, confirms, gpus.team)

    def begin(self, *, energy: bool) -> None:
        """Start what the candidates and `confirm_all` need, while a search space is made."""
        if self._is_alone:
            self.devices[0].begin_search(0 if energy else min(_TOGETHER, _cpus()))

    def confirm_all(
        self, kernels: Sequence[Kernel], workload: Workload, *, energy: bool
    ) -> Generator[Confirmed]:
        """Confirm kernels, and yield what was found of each, in their order.

        If their energy is not measured, a GPU of this process verifies several at the same time.

        Raises:
            DeviceError: the GPU cannot be used.
        """
        nbytes = sum(tensor.nbytes for tensor in workload.tensors)
        count = min(_TOGETHER, len(kernels), _TOGETHER_BYTES // max(1, nbytes))
        if energy or not self._is_alone:
            count = 1
        with self.devices[0].beside(min(count, _cpus())) as devices:
            if len(devices) < 2:
                for kernel in kernels:
                    yield _outcome(self.confirm, kernel, workload, energy=energy)
                return
            idle = SimpleQueue[Device]()
            for device in devices:
                idle.put(device)
            resting = nullcontext() if self.team is None else self.team.first.resting()
            pool = ThreadPoolExecutor(len(devices), "verify-kept")
            try:
                with resting:
                    pending = [pool.submit(_verified, kernel, workload, idle) for kernel in kernels]
                    for kernel, future in zip(kernels, pending, strict=True):
                        found = future.result()
                        if found is not None and found.outcome in _MAY_BE_OTHERS:
                            yield _outcome(self.confirms[0], kernel, workload, energy=energy)
                        else:
                            yield found
            finally:
                pool.shutdown(cancel_futures=True)

    @property
    def _is_alone(self) -> bool:
        """Whether there is one GPU, which this process can use."""
        return len(self.devices) == 1 and not self.remote

    def confirm(self, kernel: Kernel, workload: Workload, *, energy: bool) -> Measured | None:
        """Confirm a kernel on the first GPU that is in use, so that all have the same one.

        If that GPU cannot be used any more, the kernel is confirmed on the next one. A kernel with
        which two hosts were lost is not tried again. See `Confirm`.
        """
        if self.team is None:
            return self.confirms[0](kernel, workload, energy=energy)
        losses = 0
        while True:
            member = self.team.first
            confirm_there = self.confirms[self.team.members.index(member)]
            with member.resting():
                try:
                    return confirm_there(kernel, workload, energy=energy)
                except DeviceError as error:
                    losses += isinstance(error, HostLostError)
                    if losses > 1:
                        raise KernelFault("runtime", lost_twice(error)) from None
                    self.team.lose(member, error)


def _cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


_MAY_BE_OTHERS = frozenset[Outcome]({"constraints", "timeout"})
"""The faults that other kernels on the GPU may cause, which take memory and time."""


def _outcome(confirm: Confirm, kernel: Kernel, workload: Workload, *, energy: bool) -> Confirmed:
    """Confirm a kernel, and return what was found of it."""
    try:
        return confirm(kernel, workload, energy=energy)
    except KernelFault as fault:
        return fault


def _verified(kernel: Kernel, workload: Workload, idle: SimpleQueue[Device]) -> KernelFault | None:
    """Verify a kernel on an idle device; return what is wrong with it."""
    device = idle.get()
    try:
        verify_timed(device, kernel, workload)
    except KernelFault as fault:
        check_responds(device, fault)
        return fault
    finally:
        idle.put(device)
    return None


@dataclass(frozen=True)
class TimingTask:
    """A candidate to be timed, or its power to be measured; a `GpuTask`.

    Attributes:
        job: the candidate's job.
        inputs: the archive of the inputs, see `save_arrays`.
        runs: how often the candidate is timed; 0 means not at all.
        power: whether its power is measured.
    """

    job: Job
    inputs: Path
    runs: int = 1
    power: bool = False

    @property
    def title(self) -> str:
        """See `GpuTask`."""
        return f"{self.job.io.name}: {self.job.kernel.digest[:12]}"

    def run(self, gpu: GpuWorker) -> Evaluation:
        """Measure the candidate; return its figures or why it failed, with the GPU's UUID."""
        io = self.job.io
        tensors = [tensor for tensor in io.tensors if tensor.is_read]
        arenas = gpu.keep(
            self.inputs,
            lambda stack: stack.enter_context(file_arenas(io, load_arrays(self.inputs, tensors))),
        )
        try:
            with gpu.device.twin() as device:
                runs = [measure_time_ms(device, self.job, arenas) for _ in range(self.runs)]
                time_ms = median(runs) if runs else None
                sustained = measure_sustained(device, self.job, arenas) if self.power else None
        except KernelFault as fault:
            check_responds(gpu.device, fault)
            return Evaluation(outcome=fault.outcome, message=str(fault), gpu=gpu.device.uuid)
        return Evaluation(
            outcome="timed",
            time_ms=time_ms,
            sustained_ms=sustained and sustained.time_ms,
            power_w=sustained and sustained.power_w,
            energy_mj=sustained and sustained.energy_mj,
            gpu=gpu.device.uuid,
        )

    def failed(self, outcome: Literal["timeout", "runtime"], message: str, gpu: str) -> Evaluation:
        """See `GpuTask`."""
        return Evaluation(outcome=outcome, message=message, gpu=gpu)
