"""Evaluates the candidates of one workload on several GPUs at the same time.

The figures in the log are scaled as if one card had produced them all, see `CardScales`. The
reference kernel is the first candidate that ran.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.engine import CardScales, Evaluation, Team, promising
from pytest_gpuenergy.kernels import Job
from pytest_gpuenergy.record import Metric
from pytest_gpuenergy.support import KernelFault
from pytest_gpuenergy.tuning.tuning_gpus import TimingTask

REFERENCE_RUNS = 5
"""The number of timings of the reference kernel on each GPU; their median scales all other figures
of that GPU."""

_AHEAD = 2
"""The number of tasks that each GPU has at a time, so that none waits for this process."""


class ReferenceKernel(NamedTuple):
    """The kernel to which candidates are compared, and its figures in the log."""

    job: Job
    evaluation: Evaluation


class TeamRig:
    """Evaluates the candidates of one workload on several GPUs, like `engine.Rig` on one.

    Args:
        team: the processes of the GPUs.
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
        self._scales = CardScales[Evaluation](
            team, "reference kernel", lambda one: (one.time_ms, one.power_w) if one.good else ()
        )
        self._reference: ReferenceKernel | None = None
        if reference is not None:
            self._compare(reference)

    def evaluate(
        self,
        batch: Sequence[Job | KernelFault],
        known: Sequence[Evaluation],
        is_stopped: Callable[[], bool],
    ) -> Iterator[tuple[int, Evaluation]]:
        """See `Rig.evaluate`; positions come in the same order.

        Raises:
            DeviceError: no GPU is left.
        """
        first = len(known)
        timed: list[Evaluation] = []
        while self._reference is None and len(timed) < len(batch):
            if is_stopped():
                return
            timed.append(self._first(batch[len(timed)]))
            yield len(timed) - 1, timed[-1]
        rest = [(first + place, batch[place]) for place in range(len(timed), len(batch))]
        for turn, job in rest:
            if isinstance(job, Job):
                self._team.prepare(turn, [job.kernel])
        for result in self._results(rest, is_stopped):
            timed.append(self._scaled(result))
            yield len(timed) - 1, timed[-1]
        turns = {member.uuid: turn for turn, member in enumerate(self._team.members)}
        places = [
            place
            for place in promising(self.objective, timed, known)
            if timed[place].power_w is None
        ]
        jobs = [(turns.get(timed[place].gpu or "", place), batch[place]) for place in places]
        powers = self._results(jobs, is_stopped, runs=0, power=True)
        for place, result in zip(places, powers, strict=False):
            yield place, self._with_power(timed[place], result) if result.good else result

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
            result = answer.result()
            while result.good and not self._is_compared(result.gpu):
                result = self._start(turn, job, runs=runs, power=power).result()
            yield result

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

    def _start_reference(self, turn: int, job: Job) -> Future[Evaluation]:
        power = self.objective is not Metric.TIME
        return self._start(turn, job, runs=REFERENCE_RUNS, power=power)

    def _first(self, job: Job | KernelFault) -> Evaluation:
        """Time one candidate alone; the first one that runs becomes the reference."""
        result = self._start(0, job).result()
        if not result.good:
            return result
        assert isinstance(job, Job)
        return self._compare(ReferenceKernel(job, result), is_new=True)

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
        results = [future.result() for future in pending]
        first = results[0]
        if not first.good:
            return first
        if is_new:
            base = first
        elif base.power_w is None:
            base = replace(base, power_w=first.power_w)
        self._reference = ReferenceKernel(job, base)
        self._scales.compare(results, base)
        return self._scaled(first)

    def _is_compared(self, gpu: str | None) -> bool:
        """Return whether a card's figures can be scaled to those of the log.

        A card that has replaced a lost one measures the reference first.
        """
        if self._reference is None or self._scales.of(gpu):
            return True
        members = self._team.members
        turn = next((n for n, one in enumerate(members) if one.uuid == gpu and not one.lost), None)
        if turn is None:
            return False
        job, base = self._reference
        self._scales.compare([self._start_reference(turn, job).result()], base)
        return self._scales.of(gpu) is not None

    def _scaled(self, result: Evaluation) -> Evaluation:
        scales = self._scales.of(result.gpu)
        if scales is None or result.time_ms is None:
            return result
        scaled = replace(result, time_ms=result.time_ms * scales[0], time_scale=scales[0])
        return scaled if result.power_w is None else self._with_power(scaled, result)

    def _with_power(self, timed: Evaluation, result: Evaluation) -> Evaluation:
        """Return ``timed`` with the power in ``result``, if it was measured."""
        if result.power_w is None or timed.time_ms is None:
            return timed
        time_scale, power_scale = self._scales.of(result.gpu) or (1.0, 1.0)
        sustained_ms = timed.time_ms
        if result.sustained_ms is not None:
            sustained_ms = result.sustained_ms * time_scale
        power_w = result.power_w * power_scale
        return replace(
            timed,
            sustained_ms=sustained_ms,
            power_w=power_w,
            power_scale=power_scale,
            energy_mj=power_w * sustained_ms,
        )
