"""Evaluates candidates for the tuner and any other search: time first, then energy.

Three steps, each for fewer candidates than the one before: time all of them; measure the power of
the promising ones; verify those to be kept and measure them as a bench does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from pytest_gpuenergy.control import enforced_setpoint
from pytest_gpuenergy.devices import Arena, Device
from pytest_gpuenergy.engine.harness import Harness, Subject
from pytest_gpuenergy.engine.objective import Evaluation, promising
from pytest_gpuenergy.engine.quick import measure_sustained, measure_time_ms
from pytest_gpuenergy.kernels import AnyKernel, Job
from pytest_gpuenergy.record import Measurement, Metric
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.workloads import Workload


@dataclass(frozen=True)
class Rig:
    """Where candidates of one workload are evaluated.

    Attributes:
        device: where they run.
        arenas: the workload's tensors by name; left unchanged.
        objective: what is minimized.
    """

    device: Device
    arenas: Mapping[str, Arena]
    objective: Metric

    def evaluate(
        self,
        batch: Sequence[Job | KernelFault],
        known: Sequence[Evaluation],
        is_stopped: Callable[[], bool],
    ) -> Iterator[tuple[int, Evaluation]]:
        """See the function `evaluate`."""
        return evaluate(self, batch, known, is_stopped)


def evaluate(
    rig: Rig,
    batch: Sequence[Job | KernelFault],
    known: Sequence[Evaluation],
    is_stopped: Callable[[], bool],
) -> Iterator[tuple[int, Evaluation]]:
    """Time the jobs of a batch one by one, then measure the power of the promising ones.

    Nothing is verified here: see `confirm`.

    Args:
        rig: where to evaluate them.
        batch: a job for each candidate, see `quick_job`, or the fault that prevented one.
        known: evaluations of earlier batches.
        is_stopped: called before each job; once it returns true, the rest is skipped.

    Yields:
        A position in the batch with the evaluation of that candidate: once when it has been timed,
        and again when its power has been measured.

    Raises:
        DeviceError: the device does not respond.
    """
    timed: list[Evaluation] = []
    for job in batch:
        if is_stopped():
            return
        timed.append(_timed(rig, job))
        yield len(timed) - 1, timed[-1]
    for place in promising(rig.objective, timed, known):
        if is_stopped():
            return
        job = batch[place]
        assert isinstance(job, Job)  # a fault is never promising
        yield place, _with_power(rig, job, timed[place])


def _timed(rig: Rig, job: Job | KernelFault) -> Evaluation:
    try:
        if isinstance(job, KernelFault):
            raise job
        time_ms = measure_time_ms(rig.device, job, rig.arenas)
    except KernelFault as fault:
        return Evaluation(outcome=fault.outcome, message=str(fault))
    return Evaluation(outcome="timed", time_ms=time_ms)


def _with_power(rig: Rig, job: Job, timed: Evaluation) -> Evaluation:
    """``timed`` with its power, or the fault that occurred under load."""
    try:
        found = measure_sustained(rig.device, job, rig.arenas)
    except KernelFault as fault:
        return Evaluation(outcome=fault.outcome, message=str(fault))
    if found is None:
        return timed
    return replace(
        timed, sustained_ms=found.time_ms, power_w=found.power_w, energy_mj=found.energy_mj
    )


def confirm(device: Device, harness: Harness, kernel: AnyKernel, workload: Workload) -> Measurement:
    """Verify a kernel that is to be kept, and measure it as a bench does.

    Raises:
        KernelFault: it is wrong, or fails while it is measured.
        DeviceError: the device does not respond.
    """
    subject = Subject(workload.name, kernel.short_digest, enforced=enforced_setpoint(device))
    measurement = harness.measure_kernel(kernel, workload, subject)
    if measurement.outcome != "correct":
        raise KernelFault(measurement.outcome, measurement.error or "it failed.")
    return measurement
