"""A search: proposals made, lowered and compiled in the background, timed one after the other.

While one batch is timed, the next one is proposed, lowered in processes and compiled, so that
neither the GPU nor the processor waits for the other. Knows records and kernels, not TVM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from dataclasses import dataclass, replace
from threading import Event
from typing import Any

from pytest_gpuenergy.devices.device import Arena, Device
from pytest_gpuenergy.errors import GpuEnergyError, InputError, KernelFault
from pytest_gpuenergy.kernels.kernel import Kernel
from pytest_gpuenergy.metrics import Metric
from pytest_gpuenergy.tuning.lowering import KernelStore
from pytest_gpuenergy.tuning.objective import (
    equivalent_ms,
    promising,
    typical_power_w,
)
from pytest_gpuenergy.tuning.progress import Progress
from pytest_gpuenergy.tuning.raw import RawLog, Trial, trace_of
from pytest_gpuenergy.tuning.requirements import crash_hint
from pytest_gpuenergy.tuning.searcher import Scored
from pytest_gpuenergy.tuning.settings import SearchSettings
from pytest_gpuenergy.tuning.timing import measure_power_w, measure_time_ms
from pytest_gpuenergy.worker import Worker, WorkerDiedError, WorkerTimeoutError
from pytest_gpuenergy.workloads.conv2d import Conv2d

_TIMEOUT_S = 600.0
_MOST_DEATHS = 3
_LOOK_UP_S = 0.2
_MOST_BARREN = 5  # batches in a row that hold nothing new


@dataclass(frozen=True)
class Candidate:
    """A proposed schedule, and its kernel or why it has none."""

    record: str
    kernel: Kernel | KernelFault


class Proposals:
    """The search's process and what is made of its proposals; a context manager.

    Everything it does is done in one thread of the background, in the order of the calls.

    Args:
        workload: what is searched.
        architecture: of the GPU.
        settings: how to search.
        store: lowers.
        prepare: begins to compile a kernel.
        known: trials of earlier searches with their scores, for a search process that begins.
    """

    def __init__(
        self,
        workload: Conv2d,
        architecture: str,
        settings: SearchSettings,
        store: KernelStore,
        prepare: Callable[[Kernel], object],
        known: Callable[[], Sequence[Scored]],
    ) -> None:
        self._workload = workload
        self._settings = settings
        self._store = store
        self._prepare = prepare
        self._known = known
        factory = "pytest_gpuenergy.tuning.searcher:Searcher"
        self._worker = Worker(factory, workload, architecture, settings)
        self._background = ThreadPoolExecutor(1, thread_name_prefix="search")
        self._broken: GpuEnergyError | None = None
        self._begun = self._closed = False
        self._deaths = 0

    def stored_workload(self) -> str:
        """The line of the computation in ``database_workload.json``."""
        stored: str = self._background.submit(self._call, "stored_workload").result()
        return stored

    def request(self) -> Future[list[Candidate]]:
        """Begin to make the next batch; it is empty when the search finds no more."""
        return self._background.submit(self._make)

    def learn(self, trials: Sequence[Scored]) -> None:
        """Tell the search what schedules were worth, before the next batch that is requested."""
        self._background.submit(self._learn, trials)

    def __enter__(self) -> Proposals:
        return self

    def __exit__(self, *error: object) -> None:
        self._closed = True  # nothing is started again
        self._background.shutdown(wait=False, cancel_futures=True)
        self._worker.kill()

    def _make(self) -> list[Candidate]:
        if self._broken is not None:
            raise self._broken
        records: list[str] = self._call("propose")
        futures = [self._store.lower(self._workload, record) for record in records]
        for future in as_completed(futures):
            if isinstance(kernel := _kernel(future), Kernel):
                self._prepare(kernel)
        return [Candidate(r, _kernel(future)) for r, future in zip(records, futures, strict=True)]

    def _learn(self, trials: Sequence[Scored]) -> None:
        try:
            self._call("learn", trials)
        except GpuEnergyError as error:  # nobody waits for this; the next request tells it
            self._broken = error

    def _call(self, method: str, *arguments: object) -> Any:
        """Call the search's process, which is started again if TVM ends it."""
        while True:
            try:
                if not self._begun:
                    self._worker.call("begin", self._known(), timeout_s=_TIMEOUT_S)
                    self._begun = True
                return self._worker.call(method, *arguments, timeout_s=_TIMEOUT_S)
            except (WorkerDiedError, WorkerTimeoutError) as error:
                self._begun = False
                self._deaths += 1
                if self._closed or self._deaths > _MOST_DEATHS:
                    raise InputError(
                        f"TVM's search of {self._workload.name} keeps ending its process "
                        f"({str(error).rstrip('.')}); there is {crash_hint()}"
                    ) from None


def _kernel(lowered: Future[Kernel]) -> Kernel | KernelFault:
    try:
        return lowered.result()
    except KernelFault as fault:
        return fault


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
    workload: Conv2d
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
    raw = bench.raw
    raw.keep_workload(proposals.stored_workload())
    seen = {trace_of(record) for record in raw.records}
    ahead = proposals.request()
    barren = 0
    while len(raw.trials) < trials and barren < _MOST_BARREN:
        proposed = _result(ahead, bench.stop)
        batch = []
        for candidate in proposed:
            if (trace := trace_of(candidate.record)) not in seen:
                seen.add(trace)
                batch.append(candidate)
        del batch[trials - len(raw.trials) :]
        barren = 0 if batch else barren + 1
        if bench.stop.is_set():
            return
        if len(raw.trials) + len(batch) < trials:
            ahead = proposals.request()
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


def _result(ahead: Future[list[Candidate]], stop: Event) -> list[Candidate]:
    """What was requested; nothing when told to stop meanwhile."""
    while not wait([ahead], timeout=_LOOK_UP_S).done:
        if stop.is_set():
            return []
    return ahead.result()
