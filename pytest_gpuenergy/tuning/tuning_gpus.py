"""The GPUs of a tuning: each in a process that times candidates, and one that confirms kernels.

The parent process has claimed the GPUs under their power limit. On an emulated GPU each candidate
has a card of its own, so that its figures do not depend on what ran before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Literal

from pytest_gpuenergy.devices import Arena, Device
from pytest_gpuenergy.energy import check_responds
from pytest_gpuenergy.engine import (
    Evaluation,
    Station,
    Team,
    arenas_of,
    confirm,
    load_arrays,
    measure_sustained,
    measure_time_ms,
    verify_timed,
)
from pytest_gpuenergy.kernels import Job, Kernel
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.tuning.records import Measured
from pytest_gpuenergy.workloads import Workload

Confirm = Callable[[Kernel, Workload], Measured | None]
"""Verifies and measures a kernel; raises KernelFault if it fails. It returns None if there are no
figures."""


@dataclass(frozen=True)
class TuningGpus:
    """The GPUs of a tuning, all of one model and claimed.

    Attributes:
        devices: the GPUs, at least one.
        team: their processes, which time candidates.
        confirm: returns a function that confirms kernels on one of the GPUs; its argument
            ``energy`` says whether it measures them.
        far: whether the GPUs are on other hosts.
    """

    devices: tuple[Device, ...]
    team: Team
    confirm: Callable[..., Confirm]
    far: bool = False

    @classmethod
    def of_this_host(
        cls, stations: Sequence[Station], team: Team, tell: Callable[[str], None]
    ) -> TuningGpus:
        """Return the GPUs that this process has claimed.

        Args:
            stations: the claimed GPUs, in the order of the team's members.
            team: the GPUs' own processes.
            tell: called with a line about a kernel that is correct but has no figures.
        """
        devices = tuple(station.device for station in stations)
        return cls(devices, team, partial(_confirm_on_first, stations, team, tell))


def _confirm_on_first(
    stations: Sequence[Station], team: Team, tell: Callable[[str], None], *, energy: bool
) -> Confirm:
    """Return a function that confirms kernels on the first GPU of the team that still works."""
    made: dict[str, Confirm] = {}

    def confirmed(kernel: Kernel, workload: Workload) -> Measured | None:
        member = team.first
        [station] = [station for station in stations if station.device.uuid == member.uuid]
        if member.uuid not in made:
            made[member.uuid] = confirm_with(station, energy=energy, tell=tell)
        with member.resting():
            try:
                return made[member.uuid](kernel, workload)
            finally:
                station.device.renew()  # so that the GPU's own process can use it again

    return confirmed


def confirm_with(station: Station, *, energy: bool, tell: Callable[[str], None]) -> Confirm:
    """Return a function that confirms kernels on a claimed GPU, under its present power limit.

    Args:
        station: the claimed GPU.
        energy: whether time, power and energy are measured.
        tell: called with a line about a kernel that is correct but has no figures.
    """
    harness = station.harness()

    def confirmed(kernel: Kernel, workload: Workload) -> Measured | None:
        if not energy:
            verify_timed(station.device, kernel, workload)
            return None
        found = confirm(station.device, harness, kernel, workload)
        if found.time_ms is None or found.power_w is None or found.energy_mj is None:
            tell(f"{workload.name}: no energy for {kernel.short_digest}: {found.error}")
            return None
        limit_w = found.enforced_power_limit_w
        if limit_w is None or found.locked_sm_clock_max_mhz is not None:
            return None  # record files contain figures of cards with unlocked clocks only
        return Measured(found.time_ms, found.power_w, found.energy_mj, limit_w)

    return confirmed


REFERENCE_RUNS = 5
"""The number of timings of the reference kernel on each GPU; their median scales all other figures
of that GPU."""


@dataclass(frozen=True)
class TimingTask:
    """A candidate to be timed, or its power to be measured; an `Errand`.

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
        """See `Errand`."""
        return f"{self.job.io.name}: {self.job.kernel.digest[:12]}"

    def failed(self, outcome: Literal["timeout", "runtime"], message: str, gpu: str) -> Evaluation:
        """See `Errand`."""
        return Evaluation(outcome=outcome, message=message, gpu=gpu)


class TuningGpu:
    """Times candidates on one GPU.

    Args:
        gpu: the GPU, as ``--gpu-device`` takes it.
        index: the index of the GPU, see `open_device`.
    """

    def __init__(self, gpu: str, index: int) -> None:
        self._device = open_device(gpu, index=index)
        self._inputs: Path | None = None
        self._arenas: Mapping[str, Arena] = {}
        self._stack = ExitStack()

    def is_ready(self) -> bool:
        """Return True; the constructor has failed if the GPU cannot be opened."""
        return True

    def evaluate(self, task: TimingTask) -> Evaluation:
        """Measure a candidate; return its figures or why it failed, with the GPU's UUID.

        Raises:
            DeviceError: the GPU does not answer.
            InputError: the inputs cannot be read.
        """
        arenas = self._arenas_of(task)
        try:
            with self._device.twin() as device:
                runs = [measure_time_ms(device, task.job, arenas) for _ in range(task.runs)]
                time_ms = median(runs) if runs else None
                found = measure_sustained(device, task.job, arenas) if task.power else None
        except KernelFault as fault:
            check_responds(self._device, fault)
            return Evaluation(outcome=fault.outcome, message=str(fault), gpu=self._device.uuid)
        return Evaluation(
            outcome="timed",
            time_ms=time_ms,
            sustained_ms=found and found.time_ms,
            power_w=found and found.power_w,
            energy_mj=found and found.energy_mj,
            gpu=self._device.uuid,
        )

    def rest(self) -> None:
        """Release the context on the GPU, whose mode may allow one process only."""
        self._device.renew()

    def close(self) -> None:
        """End the processes of the GPU."""
        self._stack.close()
        self._device.close()

    def _arenas_of(self, task: TimingTask) -> Mapping[str, Arena]:
        if task.inputs != self._inputs:
            self._stack.close()
            self._inputs = None
            tensors = [tensor for tensor in task.job.io.tensors if tensor.is_read]
            values = load_arrays(task.inputs, tensors)
            self._arenas = self._stack.enter_context(arenas_of(task.job.io, values))
            self._inputs = task.inputs
        return self._arenas
