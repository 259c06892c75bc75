"""Evaluates the candidates of one workload on several GPUs at the same time.

Cards of one model differ by some percent in time and power. The time and power of a candidate on a
card are therefore divided by those of a reference kernel on the same card, and multiplied by those
of the reference in the log. The reference is the first candidate that ran. All figures in the log
are thus those of one imaginary card, whichever cards took part.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.engine import Evaluation, Team, promising
from pytest_gpuenergy.kernels import Job
from pytest_gpuenergy.record import Metric
from pytest_gpuenergy.support import DeviceError, KernelFault
from pytest_gpuenergy.tuning.tuning_gpus import REFERENCE_RUNS, TimingTask

_AHEAD = 2
"""The number of tasks that each GPU has at a time, so that none waits for this process."""


class ReferenceKernel(NamedTuple):
    """The kernel to which candidates are compared, and its figures in the log."""

    job: Job
    evaluation: Evaluation


class _Scale(NamedTuple):
    """The factors from the figures of a card to those of the log."""

    time: float
    power: float


class TeamRig:
    """Evaluates the candidates of one workload on several GPUs, like `engine.Rig` on one.

    Args:
        team: the team of `TuningGpu` processes.
        device: one of the GPUs as this process has opened it, for compiling.
        inputs: the archive of the workload's inputs.
        objective: the figure that the search minimizes.
        reference: the reference kernel of earlier trials; None if none ran.
    """

    def __init__(
        self,
        team: Team,
        device: Device,
        inputs: Path,
        objective: Metric,
        reference: ReferenceKernel | None,
    ) -> None:
        self.objective = objective
        self._team = team
        self._device = device
        self._inputs = inputs
        self._scales: dict[str, _Scale] = {}
        self._reference: ReferenceKernel | None = None
        if reference is not None:
            self._compare(reference)

    def evaluate(
        self,
        batch: Sequence[Job | KernelFault],
        known: Sequence[Evaluation],
        is_stopped: Callable[[], bool],
    ) -> Iterator[tuple[int, Evaluation]]:
        """See `engine.evaluate.evaluate`; positions come in the same order.

        Raises:
            DeviceError: no GPU is left.
        """
        first = len(known)
        timed: list[Evaluation] = []
        while not self._scales and len(timed) < len(batch):
            if is_stopped():
                return
            timed.append(self._first(batch[len(timed)]))
            yield len(timed) - 1, timed[-1]
        rest = [(first + place, batch[place]) for place in range(len(timed), len(batch))]
        for turn, job in rest:
            if isinstance(job, Job):
                self._team.prepare(turn, [job.kernel])
        for found in self._results(rest, is_stopped):
            timed.append(self._scaled(found))
            yield len(timed) - 1, timed[-1]
        places = [
            place
            for place in promising(self.objective, timed, known)
            if timed[place].power_w is None
        ]
        turns = {member.uuid: turn for turn, member in enumerate(self._team.members)}
        jobs = [(turns.get(timed[place].gpu or "", place), batch[place]) for place in places]
        powers = self._results(jobs, is_stopped, runs=0, power=True)
        for place, found in zip(places, powers, strict=False):
            yield place, self._with_power(timed[place], found)

    def _results(
        self,
        jobs: Iterable[tuple[int, Job | KernelFault]],
        is_stopped: Callable[[], bool],
        *,
        runs: int = 1,
        power: bool = False,
    ) -> Iterator[Evaluation]:
        """Yield the cards' figures in the order of the jobs; each job has the turn of its card."""
        waiting: deque[tuple[int, Job | KernelFault, Future[Evaluation]]] = deque()
        left = iter(jobs)
        while True:
            while len(waiting) < _AHEAD * len(self._team.working) and not is_stopped():
                if (following := next(left, None)) is None:
                    break
                waiting.append((*following, self._start(*following, runs=runs, power=power)))
            if not waiting:
                return
            turn, job, answer = waiting.popleft()
            found = answer.result()
            while found.good and not self._is_compared(found.gpu):
                found = self._start(turn, job, runs=runs, power=power).result()
            yield found

    def _start(
        self, turn: int, job: Job | KernelFault, *, runs: int = 1, power: bool = False
    ) -> Future[Evaluation]:
        try:
            if isinstance(job, KernelFault):
                raise job
            self._device.compile(job.kernel)  # into the cache that all processes share
        except KernelFault as fault:
            done: Future[Evaluation] = Future()
            done.set_result(Evaluation(outcome=fault.outcome, message=str(fault)))
            return done
        return self._team.start(turn, TimingTask(job, self._inputs, runs, power))

    def _first(self, job: Job | KernelFault) -> Evaluation:
        """Time one candidate alone; the first one that runs becomes the reference."""
        found = self._start(0, job).result()
        if not found.good:
            return found
        assert isinstance(job, Job)
        return self._compare(ReferenceKernel(job, found), is_new=True)

    def _compare(self, reference: ReferenceKernel, *, is_new: bool = False) -> Evaluation:
        """Measure the reference on all cards; return its figures, or why it fails.

        A card on which it fails is no longer used, unless it fails on the first card, too.
        """
        job, base = reference
        pending = [
            self._start_reference(turn, job)
            for turn, member in enumerate(self._team.members)
            if not member.lost
        ]
        found = [future.result() for future in pending]
        if not found[0].good:
            return found[0]
        if is_new:
            base = found[0]
        elif base.power_w is None:
            base = replace(base, power_w=found[0].power_w)
        self._reference = ReferenceKernel(job, base)
        for one in found:
            self._note(one, base)
        return self._scaled(found[0])

    def _is_compared(self, gpu: str | None) -> bool:
        """Return whether a card's figures can be scaled to those of the log.

        A card that has replaced a lost one measures the reference first.
        """
        turns = [turn for turn, one in enumerate(self._team.members) if one.uuid == gpu]
        if gpu in self._scales or self._reference is None:
            return True
        if not turns or self._team.members[turns[0]].lost:
            return False
        job, base = self._reference
        self._note(self._start_reference(turns[0], job).result(), base)
        return gpu in self._scales

    def _start_reference(self, turn: int, job: Job) -> Future[Evaluation]:
        power = self.objective is not Metric.TIME
        return self._start(turn, job, runs=REFERENCE_RUNS, power=power)

    def _note(self, one: Evaluation, base: Evaluation) -> None:
        """Note the scale of a card, or leave the card out if the reference fails there."""
        if one.good and one.gpu is not None:
            self._scales[one.gpu] = _Scale(
                _ratio(base.time_ms, one.time_ms), _ratio(base.power_w, one.power_w)
            )
        elif one.gpu in self._team.working:
            self._leave(one)

    def _leave(self, one: Evaluation) -> None:
        [member] = [member for member in self._team.members if member.uuid == one.gpu]
        self._team.leave(
            member,
            DeviceError(
                f"{self._device.name} ({member.uuid}) cannot be used, because the reference kernel "
                f"fails there ({one.outcome}): {one.message}"
            ),
        )

    def _scaled(self, found: Evaluation) -> Evaluation:
        scale = self._scales.get(found.gpu or "")
        if scale is None or not found.good or found.time_ms is None:
            return found
        time_ms = found.time_ms * scale.time
        scaled = replace(found, time_ms=time_ms, time_scale=scale.time)
        return scaled if found.power_w is None else self._with_power(scaled, found)

    def _with_power(self, timed: Evaluation, found: Evaluation) -> Evaluation:
        """Return ``timed`` with the power in ``found``, or the fault that occurred under load."""
        if not found.good:
            return found
        if found.power_w is None or timed.time_ms is None:
            return timed
        scale = self._scales.get(found.gpu or "", _Scale(1.0, 1.0))
        sustained_ms = timed.time_ms
        if found.sustained_ms is not None:
            sustained_ms = found.sustained_ms * scale.time
        power_w = found.power_w * scale.power
        return replace(
            timed,
            sustained_ms=sustained_ms,
            power_w=power_w,
            power_scale=scale.power,
            energy_mj=power_w * sustained_ms,
        )


def _ratio(base: float | None, here: float | None) -> float:
    return base / here if base and here else 1.0
