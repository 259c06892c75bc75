"""A search: batches of proposals, timed one after the other, and what they were worth.

While one batch is timed, the next ones are made, so that neither the GPU nor the processor waits
for the other. Knows records and kernels, not TVM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Event

from pytest_gpuenergy.devices.device import Arena, Device
from pytest_gpuenergy.kernels.kernel import Kernel
from pytest_gpuenergy.record.metrics import Metric
from pytest_gpuenergy.support.errors import KernelFault
from pytest_gpuenergy.tvm.objective import (
    equivalent_ms,
    promising,
    typical_power_w,
)
from pytest_gpuenergy.tvm.progress import Progress
from pytest_gpuenergy.tvm.proposals import Candidate, Proposals
from pytest_gpuenergy.tvm.raw import RawLog, trace_of
from pytest_gpuenergy.tvm.searcher import Scored
from pytest_gpuenergy.tvm.timing import measure_power_w, measure_time_ms
from pytest_gpuenergy.tvm.trials import Trial
from pytest_gpuenergy.workloads.workload import Workload

_MOST_BARREN = 5  # batches in a row, of each search process, that hold nothing new


@dataclass(frozen=True)
class Bench:
    """Where and how the candidates of a search are measured.

    Attributes:
        device: where they run.
        workload: what they compute.
        arenas: its tensors.
        objective: what the search makes small.
        raw: where every trial is written.
        progress: told of every trial.
        stop: when set, what is left is not tried any more.
    """

    device: Device
    workload: Workload
    arenas: Mapping[str, Arena]
    objective: Metric
    raw: RawLog
    progress: Progress
    stop: Event

    def try_all(self, batch: Sequence[Candidate]) -> list[Trial]:
        """Time a batch, then measure the power of those of it that are promising."""
        tried = []
        for candidate in batch:
            if self.stop.is_set():
                break
            tried.append(self._try(candidate))
        kernels = {trial.index: c.kernel for trial, c in zip(tried, batch, strict=False)}
        for trial in promising(self.objective, tried, self.raw.trials):
            if self.stop.is_set():
                break
            kernel = kernels[trial.index]
            assert isinstance(kernel, Kernel)
            self._weigh(trial, kernel)
        return [self.raw.trials[trial.index] for trial in tried]

    def _try(self, candidate: Candidate) -> Trial:
        kernel = candidate.kernel
        trial = Trial(0, "timed", elapsed_s=round(self.progress.elapsed_s, 3))
        try:
            if isinstance(kernel, KernelFault):
                raise kernel
            trial = replace(trial, digest=kernel.digest)
            time_ms = measure_time_ms(self.device, kernel, self.workload, self.arenas)
            trial = replace(trial, time_ms=time_ms)
        except KernelFault as fault:
            trial = replace(trial, outcome=fault.outcome, message=str(fault))
        trial = self.raw.add(candidate.record, trial)
        self.progress.add(trial)
        return trial

    def _weigh(self, trial: Trial, kernel: Kernel) -> None:
        try:
            power_w = measure_power_w(self.device, kernel, self.workload, self.arenas)
        except KernelFault as fault:
            self.raw.amend(replace(trial, outcome=fault.outcome, message=str(fault), time_ms=None))
            return
        if power_w is not None and trial.time_ms is not None:
            weighed = replace(trial, power_w=power_w, energy_mj=power_w * trial.time_ms)
            self.raw.amend(weighed)


def search(proposals: Proposals, bench: Bench, trials: int) -> None:
    """Try candidates until ``trials`` have been tried, the search finds no more, or is stopped.

    A schedule that was tried before is not tried again.

    Raises:
        InputError: the search ended with an error.
        DeviceError: the GPU does not answer.
    """
    raw, stop = bench.raw, bench.stop
    most_barren = _MOST_BARREN * proposals.processes
    seen = {trace_of(record) for record in raw.records}
    proposals.request()
    if (stored := proposals.stored_workload(stop)) is not None:
        raw.keep_workload(stored)
    barren = 0
    while len(raw.trials) < trials and barren < most_barren and not stop.is_set():
        batch = []
        for candidate in proposals.take(stop):
            if (trace := trace_of(candidate.record)) not in seen:
                seen.add(trace)
                batch.append(candidate)
        del batch[trials - len(raw.trials) :]
        barren = 0 if batch else barren + 1
        if len(raw.trials) + len(batch) < trials:
            proposals.request()
        tried = bench.try_all(batch)
        worths = worth_s(bench.objective, tried, raw.trials)
        pairs = zip(batch, worths, strict=False)  # a search that is stopped has not tried all
        proposals.learn([Scored(candidate.record, worth) for candidate, worth in pairs])


def known(objective: Metric, raw: RawLog) -> list[Scored]:
    """All trials of a folder, and what they are worth to the search."""
    trials = raw.trials.copy()
    worths = worth_s(objective, trials, trials)
    return [Scored(record, worth) for record, worth in zip(raw.records, worths, strict=False)]


def worth_s(
    objective: Metric, trials: Sequence[Trial], known: Sequence[Trial]
) -> list[float | None]:
    """What the search is told of ``trials``: a time in seconds, or None for a failed one."""
    typical_w = typical_power_w(known)
    return [
        equivalent_ms(objective, trial, typical_w) / 1e3 if trial.good else None for trial in trials
    ]
