"""What runs in the process of one GPU of several on which candidates are timed, see `engine.team`.

The parent process has claimed the GPU under its power limit. On an emulated GPU each candidate has
a card of its own, so that figures do not depend on what ran before.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

from pytest_gpuenergy.devices import Arena, Device
from pytest_gpuenergy.energy import answers
from pytest_gpuenergy.engine import (
    Evaluation,
    arenas_of,
    load_arrays,
    measure_sustained,
    measure_time_ms,
)
from pytest_gpuenergy.kernels import Job
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.support import DeviceError, KernelFault

REFERENCE_RUNS = 5
"""Timings of the reference kernel on each GPU, whose median counts: all others depend on it."""


@dataclass(frozen=True)
class TimingTask:
    """A candidate to be timed, or its power to be measured; an `Errand`.

    Attributes:
        job: the candidate's.
        inputs: archive of the inputs, see `save_arrays`.
        runs: how often it is timed; 0: not at all.
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
        gpu: as ``--gpu-device`` takes it.
        index: see `open_device`.
    """

    def __init__(self, gpu: str, index: int) -> None:
        self._device = open_device(gpu, index=index)
        self._inputs: Path | None = None
        self._arenas: Mapping[str, Arena] = {}
        self._stack = ExitStack()

    def is_ready(self) -> bool:
        """True; there is no answer if the GPU cannot be opened."""
        return True

    def evaluate(self, task: TimingTask) -> Evaluation:
        """What was measured of a candidate, or why it failed, with the GPU's UUID.

        Raises:
            DeviceError: the GPU does not answer.
            InputError: the inputs cannot be read.
        """
        arenas = self._arenas_of(task)
        try:
            with self._device.twin() as device:
                time_ms = self._time_ms(device, task, arenas) if task.runs else None
                found = measure_sustained(device, task.job, arenas) if task.power else None
        except KernelFault as fault:
            self._check_answers(fault)
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
        """Keep no context on the GPU, which may be in a mode where only one process has one."""
        self._device.renew()

    def close(self) -> None:
        """End the processes of the GPU."""
        self._stack.close()
        self._device.close()

    def _time_ms(self, device: Device, task: TimingTask, arenas: Mapping[str, Arena]) -> float:
        return median(measure_time_ms(device, task.job, arenas) for _ in range(task.runs))

    def _arenas_of(self, task: TimingTask) -> Mapping[str, Arena]:
        if task.inputs != self._inputs:
            self._stack.close()
            self._inputs = None
            tensors = [tensor for tensor in task.job.io.tensors if tensor.is_read]
            values = load_arrays(task.inputs, tensors)
            self._arenas = self._stack.enter_context(arenas_of(task.job.io, values))
            self._inputs = task.inputs
        return self._arenas

    def _check_answers(self, fault: KernelFault) -> None:
        if not answers(self._device):
            raise DeviceError(
                f"{self._device.name} does not respond any more ({fault}): check it with "
                "nvidia-smi, then continue with --resume."
            ) from None
