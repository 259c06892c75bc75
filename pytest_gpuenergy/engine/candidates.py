"""Evaluates the candidates of a search: time first, then energy.

There are three steps, each for fewer candidates than the one before: time all of them; measure the
power of the promising ones; verify those that are to be kept and measure them as a bench does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from pytest_gpuenergy.control import enforced_setpoint
from pytest_gpuenergy.devices import Arena, Device, Timeline
from pytest_gpuenergy.energy import CounterError, EnergyMeter, MeterSettings
from pytest_gpuenergy.engine.arena_check import check_again
from pytest_gpuenergy.engine.arenas import seeded_arenas
from pytest_gpuenergy.engine.harness import Harness, Subject
from pytest_gpuenergy.engine.verification import seeded_check, verify_on_device
from pytest_gpuenergy.kernels import AnyKernel, Job
from pytest_gpuenergy.record import AboveZero, Measurement, Metric, NotNegative
from pytest_gpuenergy.support import KernelFault, Outcome
from pytest_gpuenergy.workloads import Workload

KEEP_ONE_OF = 4
"""Each step keeps one candidate in this many, as in successive halving.

Compare Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter
Optimization", AISTATS 2016.
"""

DURATION_S = 0.01
"""The time for which a candidate is timed. The turns at its beginning and end come on top: a GPU
makes five turns of 8 ms in all, of which the first does not count."""

TIMEOUT_S = 20.0
"""The time limit of a candidate's job."""

QUICK = MeterSettings(
    warmup_s=0.4,
    limited_warmup_s=0.6,
    warmup_max_s=0.4,
    steady_slope_per_s=math.inf,
    trial_s=0.2,
    min_trials=2,
    max_measure_s=0.4,
    preheat_s=0.0,
)
"""The settings with which the power of a promising candidate is measured."""

EvaluationOutcome = Outcome | Literal["timed"]
"""``timed`` if the candidate ran, whether its results are correct or not; otherwise its fault."""


class Evaluation(Struct, frozen=True, kw_only=True):
    """The result of evaluating one candidate.

    Attributes:
        outcome: ``timed`` if the candidate ran, otherwise the kind of its fault.
        time_ms: the time of one launch in the first moments, before the power limit slows the card;
            None if the candidate failed.
        sustained_ms: the time of one launch while the power was measured, if it was.
        power_w: the mean power while it ran, if measured.
        energy_mj: the energy of one launch, if measured.
        message: the reason why the candidate failed, as a sentence.
        gpu: the UUID of the card, if the search uses several.
        time_scale: the factor by which the times of this card have been multiplied, to make them
            comparable with those of the search's reference card; None if they have not.
        power_scale: the factor by which the card's powers have been multiplied likewise.
    """

    outcome: EvaluationOutcome
    time_ms: AboveZero | None = None
    sustained_ms: AboveZero | None = None
    power_w: NotNegative | None = None
    energy_mj: NotNegative | None = None
    message: str | None = None
    gpu: str | None = None
    time_scale: AboveZero | None = None
    power_scale: AboveZero | None = None

    @property
    def good(self) -> bool:
        """Whether it ran without a fault so far."""
        return self.outcome == "timed"


class Typical(NamedTuple):
    """Assumptions about candidates whose power was not measured.

    Attributes:
        power_w: the power that it draws.
        slowdown: its time at that power, divided by its time in the first moments.
    """

    power_w: float
    slowdown: float = 1.0

    @classmethod
    def of(cls, evaluations: Sequence[Evaluation]) -> Typical | None:
        """Return the medians over the evaluations; None if no power has been measured."""
        powers = [
            evaluation.power_w
            for evaluation in evaluations
            if evaluation.good and evaluation.power_w
        ]
        return cls(median(powers), median(_slowdowns(evaluations))) if powers else None


def cost_ms(objective: Metric, evaluation: Evaluation, typical: Typical | None) -> float:
    """Return the objective as the time of an equally good kernel with typical power and slowdown.

    For time this is t; for energy, P t, it is t P / P_typical; for the energy-delay product, P t^2,
    it is t sqrt(P / P_typical). There, t is the time while P was measured, divided by the typical
    slowdown. A search that minimizes time minimizes the objective when given these costs. A
    candidate of unknown power counts as typical; the cost of one that failed is infinite.
    """
    if not evaluation.good or evaluation.time_ms is None:
        return math.inf
    if objective == Metric.TIME or evaluation.power_w is None or typical is None:
        return evaluation.time_ms
    time_ms, ratio = evaluation.time_ms, evaluation.power_w / typical.power_w
    if evaluation.sustained_ms is not None:
        time_ms = evaluation.sustained_ms / typical.slowdown
    return time_ms * (ratio if objective == Metric.ENERGY else math.sqrt(ratio))


def _slowdowns(evaluations: Sequence[Evaluation]) -> list[float]:
    return [
        evaluation.sustained_ms / evaluation.time_ms
        for evaluation in evaluations
        if evaluation.good
        and evaluation.sustained_ms is not None
        and evaluation.time_ms is not None
    ] or [1.0]


def promising(
    objective: Metric, batch: Sequence[Evaluation], known: Sequence[Evaluation]
) -> list[int]:
    """Return the positions in ``batch`` of candidates whose power to measure, fastest first.

    The fastest quarter of the candidates that ran is measured, without those that could not become
    the best even with the lowest power and the least slowdown seen so far. A search for time
    measures none.

    Args:
        objective: what is minimized.
        batch: candidates of which only the time is known.
        known: all evaluations so far.
    """
    if objective == Metric.TIME:
        return []
    good = [place for place, timed in enumerate(batch) if timed.good]
    good.sort(key=lambda place: batch[place].time_ms or math.inf)
    fastest = good[: -(-len(good) // KEEP_ONE_OF)]
    measured = [earlier for earlier in known if earlier.good and earlier.power_w]
    typical = Typical.of(measured)
    if typical is None:
        return fastest
    best_ms = min(cost_ms(objective, earlier, typical) for earlier in measured)
    least_w = min(earlier.power_w or math.inf for earlier in measured)
    slowdown = min(_slowdowns(measured))

    def least_cost_ms(timed: Evaluation) -> float:
        sustained_ms = None if timed.time_ms is None else timed.time_ms * slowdown
        best_case = replace(timed, power_w=least_w, sustained_ms=sustained_ms)
        return cost_ms(objective, best_case, typical)

    return [place for place in fastest if least_cost_ms(batch[place]) <= best_ms]


@dataclass(frozen=True)
class Rig:
    """The setup in which candidates of one workload are evaluated.

    Attributes:
        device: the device that runs them.
        arenas: the arenas of the workload's tensors by name; their inputs are left unchanged.
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
        """Time the jobs of a batch one by one, then measure the power of the promising ones.

        Nothing is verified here: see `confirm`.

        Args:
            batch: a job for each candidate, see `quick_job`, or the fault that prevented one.
            known: the evaluations of earlier batches.
            is_stopped: called before each job; once it returns True, the rest is skipped.

        Yields:
            A position in the batch and the evaluation of that candidate: first when it has been
            timed, and again when its power has been measured.

        Raises:
            DeviceError: the device does not respond.
        """
        timed: list[Evaluation] = []
        for job in batch:
            if is_stopped():
                return
            try:
                if isinstance(job, KernelFault):
                    raise job
                time_ms = measure_time_ms(self.device, job, self.arenas)
                timed.append(Evaluation(outcome="timed", time_ms=time_ms))
            except KernelFault as fault:
                timed.append(Evaluation(outcome=fault.outcome, message=str(fault)))
            yield len(timed) - 1, timed[-1]
        for place in promising(self.objective, timed, known):
            if is_stopped():
                return
            job = batch[place]
            assert isinstance(job, Job)  # a fault is never promising
            try:
                sustained = measure_sustained(self.device, job, self.arenas)
            except KernelFault as fault:  # which occurred under load
                yield place, Evaluation(outcome=fault.outcome, message=str(fault))
                continue
            if sustained is not None:
                timed[place] = replace(
                    timed[place],
                    sustained_ms=sustained.time_ms,
                    power_w=sustained.power_w,
                    energy_mj=sustained.energy_mj,
                )
            yield place, timed[place]


def confirm(device: Device, harness: Harness, kernel: AnyKernel, workload: Workload) -> Measurement:
    """Verify a kernel that is to be kept, and measure it as a bench does.

    Raises:
        KernelFault: the kernel is wrong, or fails while it is measured.
        DeviceError: the device does not respond.
    """
    subject = Subject(workload.name, kernel.short_digest, enforced=enforced_setpoint(device))
    measurement = harness.measure_kernel(kernel, workload, subject)
    if measurement.outcome != "correct":
        raise KernelFault(measurement.outcome, measurement.error or "it failed.")
    return measurement


def quick_job(kernel: AnyKernel, workload: Workload) -> Job:
    """Return the job for a candidate, with a shorter timeout than in a bench."""
    return Job.of(kernel, workload, timeout_s=TIMEOUT_S)


def measure_time_ms(
    device: Device, job: Job, arenas: Mapping[str, Arena], *, duration_s: float = DURATION_S
) -> float:
    """Return the GPU time of one launch in ms, the median over batches of back-to-back launches.

    Args:
        device: the device that runs the kernel.
        job: the job to run; nothing is verified here.
        arenas: the arenas of its tensors by name; their inputs are left unchanged.
        duration_s: how long to run, on the device's clock.

    Raises:
        KernelFault: the kernel did not compile, crashed or hung.
    """
    with device.repeat(job, arenas) as repeater:
        repeater.start()
        device.clock.sleep_s(duration_s)
        timeline = repeater.stop()
    return median_time_ms(timeline)


def verify_timed(device: Device, kernel: AnyKernel, workload: Workload) -> None:
    """Verify a kernel before and after it runs back to back, as in `measure_time_ms`.

    Raises:
        KernelFault: the kernel is wrong at first or later, or fails.
    """
    verify_on_device(device, kernel, workload)
    with seeded_arenas(workload, 0, device.arrays) as arenas:
        check = seeded_check(device, workload, arenas, seed=0)
        with device.repeat(quick_job(kernel, workload), arenas) as repeater:
            repeater.start()
            device.clock.sleep_s(DURATION_S)
            repeater.stop()
            check_again(repeater, check)


class Sustained(NamedTuple):
    """Figures of one launch in a window in which the power limit may slow the card."""

    time_ms: float
    power_w: float
    energy_mj: float


def measure_sustained(device: Device, job: Job, arenas: Mapping[str, Arena]) -> Sustained | None:
    """Measure time, power and energy while a kernel runs back to back, after a short heat-up.

    Returns:
        The figures; None if the card's energy cannot be read.

    Raises:
        KernelFault: the kernel did not compile, crashed or hung.
    """
    with device.repeat(job, arenas) as repeater:
        try:
            reading = EnergyMeter(device, QUICK).measure(repeater)
        except CounterError:
            return None
    return Sustained(reading.time_ms.value, reading.power_w, reading.energy_mj.value)


def median_time_ms(timeline: Timeline) -> float:
    """Return the median of the batches' GPU time per launch, in ms.

    Raises:
        KernelFault: no launch has finished.
    """
    launches = np.diff(timeline.launches)
    busy_s = np.diff(timeline.busy_s)[launches > 0]
    times_ms = 1e3 * busy_s / launches[launches > 0]
    if len(times_ms) > 2:
        times_ms = times_ms[1:]  # the first batch fills the caches
    if not len(times_ms) or not 0 < (time_ms := float(np.median(times_ms))) < np.inf:
        raise KernelFault("runtime", "The kernel ran, but no launch took measurable time.")
    return time_ms
