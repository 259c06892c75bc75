"""Tunes one workload: search, choose representatives, prove and measure them, write them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from threading import Event
from time import monotonic
from typing import TextIO

from pytest_gpuenergy.devices.device import Device
from pytest_gpuenergy.engine.verification import arenas_for
from pytest_gpuenergy.kernels.kernel import Kernel, Origin
from pytest_gpuenergy.record.metrics import Metric
from pytest_gpuenergy.support.errors import GpuEnergyError, InputError, KernelFault
from pytest_gpuenergy.tvm import representatives as choice
from pytest_gpuenergy.tvm.lowering import KernelStore
from pytest_gpuenergy.tvm.objective import equivalent_ms, typical_power_w
from pytest_gpuenergy.tvm.progress import Progress
from pytest_gpuenergy.tvm.proposals import Proposals
from pytest_gpuenergy.tvm.raw import RawLog, gpu_name, trace_of
from pytest_gpuenergy.tvm.records import (
    Band,
    Measured,
    Record,
    RecordFile,
    dump_records,
    file_name,
    load_records,
)
from pytest_gpuenergy.tvm.requirements import installed_tvm
from pytest_gpuenergy.tvm.search import Bench, known, search
from pytest_gpuenergy.tvm.settings import SearchSettings
from pytest_gpuenergy.tvm.spaces import require_space
from pytest_gpuenergy.tvm.trials import TRIALS_FILE, Trial
from pytest_gpuenergy.workloads.workload import Workload

Verify = Callable[[Device, Kernel, Workload], object]
"""Proves a kernel right, or raises KernelFault."""

Measure = Callable[[Device, Kernel, Workload], Measured | None]
"""Measures a kernel; raises KernelFault when it fails, gives None when there are no figures."""


@dataclass(frozen=True)
class TuneResult:
    """What became of one workload's tuning.

    Attributes:
        workload: its name.
        path: the record file.
        started: when it began, in ISO 8601.
        tried: trials in the folder, of which ``valid`` ran.
        kept: kernels in the record file.
        best_ms: time of the best kernel's launch in the search.
        best_gflops: the same as a rate.
        gflops: the rate of each kernel in the record file, in its order.
        rejected: why chosen kernels were replaced.
        search_s: wall time of this search.
        elapsed_s: wall time of the search and of all that followed.
        energy_j: what the card took meanwhile; None where it does not tell.
    """

    workload: str
    path: Path
    started: str
    tried: int
    valid: int
    kept: int
    best_ms: float
    best_gflops: float
    gflops: tuple[float, ...]
    rejected: tuple[str, ...]
    search_s: float
    elapsed_s: float
    energy_j: float | None


@dataclass(frozen=True)
class _Chosen:
    index: int
    band: Band
    measured: Measured | None


@dataclass(frozen=True)
class Tuner:
    """Tunes workloads on one device, one after the other.

    Attributes:
        device: where candidates run.
        store: lowers them.
        folder: where record files go; raw results go into ``<workload>/raw`` in it.
        keep: how many kernels a record file gets.
        objective: what the search makes small.
        resume: whether a folder that holds a search is continued, rather than refused.
        verify: verifies a chosen kernel; also after many launches, where nothing is measured.
        measure: measures power and energy of a chosen kernel, and verifies it again after that;
            None leaves the figures out.
        tell: called with lines of progress.
        live: a terminal to draw the progress on; None for lines only.
        stop: set by someone else to end early.
        is_kept: whether the caller has all of a workload's outcome; one that has not gets it anew.
    """

    device: Device
    store: KernelStore
    folder: Path
    keep: int
    objective: Metric
    resume: bool
    verify: Verify
    measure: Measure | None
    tell: Callable[[str], None]
    live: TextIO | None
    stop: Event
    is_kept: Callable[[Workload], bool] = lambda _: True

    def tune(self, workloads: Sequence[Workload], settings: SearchSettings) -> Iterator[TuneResult]:
        """Search workload by workload, and write the record file of each.

        One whose record file is there already, as this search would leave it, is passed over. The
        search processes of the next one start while the kernels of this one are proven. What is
        wrong with one is told at once, and raised when the others are done.

        Raises:
            InputError: a folder holds another search, or one although it is not to be resumed;
                or the space is empty; or no candidate runs.
            KeyboardInterrupt: told to stop; what was tried is in the raw results.
        """
        ahead: _Tuning | None = None
        failed: list[str] = []
        try:
            for workload, following in pairwise((*workloads, None)):
                assert workload is not None
                try:
                    current = ahead or _Tuning(self, workload, settings)
                    ahead = None
                    with current:
                        search_s = self._search(current, settings)
                        if self._is_written(current):
                            self.tell(f"{workload.name}: its kernels are chosen and proven already")
                            continue
                        if following is not None:
                            with suppress(GpuEnergyError):  # it is told at its turn
                                ahead = _Tuning(self, following, settings)
                        result = self._finish(current, search_s)
                except InputError as error:
                    if len(workloads) == 1:
                        raise
                    self.tell(f"{workload.name}: not tuned: {error}")
                    failed.append(workload.name)
                else:
                    yield result
        finally:
            if ahead is not None:
                ahead.close()
        if failed:
            raise InputError(
                f"{len(failed)} of {len(workloads)} workloads could not be tuned, for the reasons "
                f"above: {', '.join(failed)}."
            )

    def _is_written(self, tuning: _Tuning) -> bool:
        """Whether the record file has what `_finish` would put there, by what can be told."""
        try:
            file = load_records(self.folder / file_name(tuning.workload))
        except GpuEnergyError:
            return False  # there is none, or it is damaged
        trials = tuning.raw.trials
        good = [trial for trial in trials if trial.good]
        picks = choice.representatives(_choosable(good, tuning.raw, {}), self.keep)
        return (
            self.is_kept(tuning.workload)
            and file.gpu == gpu_name(self.device)
            and file.objective == self.objective
            and file.trials_total == len(trials)
            and file.trials_valid == len(good)
            and len(file.records) == len(picks)
            and all((r.measured is None) == (self.measure is None) for r in file.records)
        )

    def _search(self, tuning: _Tuning, settings: SearchSettings) -> float:
        """Try candidates; the wall time it took in s."""
        workload, raw, proposals = tuning.workload, tuning.raw, tuning.proposals
        tuning.begin()
        if proposals is None:
            return 0.0
        self.tell(
            f"{workload.name}: searching on {gpu_name(self.device)} with {settings.threads} "
            f"threads, {settings.batch} schedules a batch"
        )
        with (
            Progress(
                workload.name, settings.trials, raw.trials.copy(), self.tell, self.live
            ) as progress,
            arenas_for(workload, seed=0) as arenas,
        ):
            bench = Bench(self.device, workload, arenas, self.objective, raw, progress, self.stop)
            search(proposals, bench, settings.trials)
            proposals.close()
            search_s = progress.elapsed_s
        if self.stop.is_set():
            self.tell(f"{workload.name}: stopped; what was tried is kept in {raw.folder}")
            raise KeyboardInterrupt
        if len(raw.trials) < settings.trials:
            self.tell(f"{workload.name}: the search found no more than {len(raw.trials)} schedules")
        return search_s

    def _finish(self, tuning: _Tuning, search_s: float) -> TuneResult:
        """Choose, prove, measure and write."""
        workload, raw = tuning.workload, tuning.raw
        chosen, rejected = self._choose(workload, raw)
        path = self._write(workload, raw, chosen)
        times_ms = [raw.trials[one.index].time_ms or math.inf for one in chosen]
        return TuneResult(
            workload=workload.name,
            path=path,
            started=tuning.started.isoformat(timespec="seconds"),
            tried=len(raw.trials),
            valid=sum(trial.good for trial in raw.trials),
            kept=len(chosen),
            best_ms=min(times_ms),
            best_gflops=workload.flops / min(times_ms) / 1e6,
            gflops=tuple(workload.flops / time_ms / 1e6 for time_ms in times_ms),
            rejected=rejected,
            search_s=search_s,
            elapsed_s=tuning.elapsed_s,
            energy_j=_since(tuning.before_j, _energy_j(self.device)),
        )

    def _choose(self, workload: Workload, raw: RawLog) -> tuple[list[_Chosen], tuple[str, ...]]:
        """Representatives that are right; a wrong one is replaced by the next nearest.

        Twice as many as are wanted contend for the best; one that is measured is judged by that.
        For another objective than time all that contend are measured.
        """
        good = [trial for trial in raw.trials if trial.good]
        if not good:
            raise InputError(
                f"None of the {len(raw.trials)} trials of {workload.name} ran: see why in "
                f"{raw.folder / TRIALS_FILE}, or try more with --trials."
            )
        typical_w = typical_power_w(good)
        estimates = {t.index: equivalent_ms(self.objective, t, typical_w) for t in good}
        contending = sorted(estimates, key=lambda index: (estimates[index], index))
        costs = {index: estimates[index] for index in contending[: 2 * -(-self.keep // 5)]}
        always = [] if self.objective == "time" or self.measure is None else list(costs)
        proven: dict[int, Measured | None] = {}
        wrong: dict[int, str] = {}
        while True:
            rejected = [place for place, trial in enumerate(good) if trial.index in wrong]
            picks = choice.representatives(_choosable(good, raw, costs), self.keep, rejected)
            wanted = dict.fromkeys([*always, *(good[pick.index].index for pick in picks)])
            fresh = [raw.trials[i] for i in wanted if i not in proven and i not in wrong]
            if not fresh:
                break
            self.tell(f"{workload.name}: checking {len(fresh)} chosen kernels")
            for trial in fresh:
                if self.stop.is_set():
                    raise KeyboardInterrupt
                try:
                    kernel = self.store.lower(workload, raw.records[trial.index]).result()
                    measured = self._prove(workload, kernel)
                except KernelFault as fault:
                    wrong[trial.index] = f"{(trial.digest or '')[:12]}: {fault.outcome}: {fault}"
                    self.tell(f"{workload.name}: replacing {wrong[trial.index]}")
                    raw.amend(replace(trial, outcome=fault.outcome, message=str(fault)))
                    continue
                proven[trial.index] = measured
                if measured is not None:
                    typical_w = typical_w or measured.power_w
                    precise = replace(trial, time_ms=measured.time_ms, power_w=measured.power_w)
                    costs[trial.index] = equivalent_ms(self.objective, precise, typical_w)
        if not picks:
            raise InputError(
                f"No kernel of {workload.name} is right ({len(wrong)} checked), the first because "
                f"{next(iter(wrong.values()))}"
            )
        if len(picks) < self.keep:
            self.tell(f"{workload.name}: only {len(picks)} of {self.keep} kernels to keep")
        chosen = [
            _Chosen(good[pick.index].index, pick.band, proven[good[pick.index].index])
            for pick in picks
        ]
        return chosen, tuple(wrong.values())

    def _prove(self, workload: Workload, kernel: Kernel) -> Measured | None:
        named = replace(kernel, origin=Origin("tvm-metaschedule"))
        self.verify(self.device, named, workload)
        return None if self.measure is None else self.measure(self.device, named, workload)

    def _write(self, workload: Workload, raw: RawLog, chosen: Sequence[_Chosen]) -> Path:
        best: Band = "fastest" if self.objective == "time" else "best"
        records = [
            Record(
                rank,
                best if one.band == "fastest" else one.band,
                raw.records[one.index],
                one.measured,
            )
            for rank, one in enumerate(chosen, start=1)
        ]
        file = RecordFile(
            workload=workload,
            gpu=gpu_name(self.device),
            driver=self.device.describe().get("driver", "unknown"),
            tvm=installed_tvm() or "unknown",
            target=json.dumps(records[0].content[2]),
            date=datetime.now(UTC).date().isoformat(),
            trials_total=len(raw.trials),
            trials_valid=sum(trial.good for trial in raw.trials),
            records=tuple(records),
            objective=self.objective,
        )
        path = self.folder / file_name(workload)
        dump_records(file, path)
        return path


class _Tuning:
    """The tuning of one workload that has begun: its raw results and search processes.

    Attributes:
        proposals: None when there are trials enough.
    """

    def __init__(self, tuner: Tuner, workload: Workload, settings: SearchSettings) -> None:
        require_space(workload, settings.space)
        folder = tuner.folder / workload.name / "raw"
        self.workload = workload
        self.proposals: Proposals | None = None
        self._device = tuner.device
        with ExitStack() as stack:
            self.raw = raw = stack.enter_context(RawLog(folder, workload, tuner.device))
            if raw.trials and not tuner.resume:
                raise InputError(
                    f"{folder} holds {len(raw.trials)} trials already: continue them with --resume "
                    "(--trials counts those too), or name another folder with --out."
                )
            if len(raw.trials) < settings.trials:
                proposals = Proposals(
                    workload,
                    tuner.device.architecture,
                    settings,
                    tuner.store,
                    lambda kernel: tuner.device.prepare([kernel]),
                    lambda: known(tuner.objective, raw),
                )
                self.proposals = stack.enter_context(proposals)
                proposals.request()
            self._stack = stack.pop_all()
        self.begin()

    def begin(self) -> None:
        """Count wall time and joules from now on."""
        self.started = datetime.now(UTC)
        self.before_j = _energy_j(self._device)
        self._began_s = monotonic()

    @property
    def elapsed_s(self) -> float:
        """Wall time since `begin`."""
        return monotonic() - self._began_s

    def close(self) -> None:
        """End what is still under way. Idempotent."""
        self._stack.close()

    def __enter__(self) -> _Tuning:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _choosable(
    good: Sequence[Trial], raw: RawLog, costs: Mapping[int, float]
) -> list[choice.Trial]:
    """The trials that ran, for the choice; only those with ``costs`` contend for the best."""
    return [
        choice.Trial(
            trial.time_ms or math.inf,
            (trace_of(raw.records[trial.index]), trial.digest or str(trial.index)),
            costs.get(trial.index, math.inf),
        )
        for trial in good
    ]


def _energy_j(device: Device) -> float | None:
    """What the card has taken since its driver was loaded; None where it does not tell."""
    try:
        return float(device.nvml.nvmlDeviceGetTotalEnergyConsumption(device.handle)) / 1e3
    except device.nvml.NVMLError:
        return None


def _since(before_j: float | None, after_j: float | None) -> float | None:
    return None if before_j is None or after_j is None else after_j - before_j
