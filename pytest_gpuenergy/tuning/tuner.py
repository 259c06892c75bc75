"""Tunes one workload after the other: search, choose, write the record file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from threading import Event
from time import monotonic
from typing import TextIO

from pytest_gpuenergy.devices.device import Device
from pytest_gpuenergy.engine.evaluate import Rig
from pytest_gpuenergy.engine.verification import arenas_for
from pytest_gpuenergy.record.metrics import Metric
from pytest_gpuenergy.support.errors import GpuEnergyError, InputError
from pytest_gpuenergy.tuning.choose import Chooser, Chosen, contenders
from pytest_gpuenergy.tuning.confirm import Confirm
from pytest_gpuenergy.tuning.loop import Loop, feedback
from pytest_gpuenergy.tuning.outcome import TuneResult
from pytest_gpuenergy.tuning.progress import SearchProgress
from pytest_gpuenergy.tuning.raw_log import RawLog, gpu_name
from pytest_gpuenergy.tuning.records import (
    Band,
    Record,
    RecordFile,
    dump_records,
    file_name,
    load_records,
)
from pytest_gpuenergy.tuning.representatives import representatives
from pytest_gpuenergy.tuning.space import Feedback, Proposer, SearchSpace
from pytest_gpuenergy.workloads.workload import Workload


@dataclass(frozen=True)
class TuneSettings:
    """What a tuning is asked for.

    Attributes:
        trials: candidates to time, all searches of the folder together.
        keep: how many kernels a record file gets.
        objective: what the search minimizes.
        energy: whether power and energy of the kept kernels are measured.
        resume: whether a folder that holds a search is continued, rather than refused.
    """

    trials: int
    keep: int
    objective: Metric = Metric.TIME
    energy: bool = True
    resume: bool = False


@dataclass(frozen=True)
class Tuner:
    """Tunes workloads on one device, one after the other.

    Attributes:
        device: where candidates run.
        make_space: where to look for kernels of a workload; raises InputError if nowhere.
        folder: where record files go; raw results go into ``<workload>/raw`` in it.
        settings: what is asked for.
        confirm: verifies a chosen kernel, and measures it if ``settings.energy``.
        tell: called with lines of progress.
        live: a terminal to draw the progress on; None for lines only.
        stop: set by someone else to end early.
        is_kept: whether the caller has all of a workload's outcome; one that has not gets it anew.
    """

    device: Device
    make_space: Callable[[Workload], SearchSpace]
    folder: Path
    settings: TuneSettings
    confirm: Confirm
    tell: Callable[[str], None]
    live: TextIO | None
    stop: Event
    is_kept: Callable[[Workload], bool] = lambda _: True

    def tune(self, workloads: Sequence[Workload]) -> Iterator[TuneResult]:
        """Search workload by workload, and write the record file of each.

        One whose record file is there already, as this search would leave it, is passed over. The
        search of the next one begins while the kernels of this one are confirmed. What is wrong
        with one is reported immediately, and raised when the others are done.

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
                    current = ahead or _Tuning(self, workload)
                    ahead = None
                    with current:
                        search_s = self._search(current)
                        if self._is_written(current):
                            self.tell(f"{workload.name}: its kernels are chosen and proven already")
                            continue
                        if following is not None:
                            with suppress(GpuEnergyError):  # it is reported at its turn
                                ahead = _Tuning(self, following)
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

    def _search(self, tuning: _Tuning) -> float:
        """Try candidates; the wall time it took in s."""
        name, log, trials = tuning.workload.name, tuning.log, self.settings.trials
        tuning.begin()
        if tuning.proposer is None:
            return 0.0
        self.tell(f"{name}: searching on {gpu_name(self.device)} with {tuning.space.effort}")
        with (
            SearchProgress(name, trials, log.trials.copy(), self.tell, self.live) as progress,
            arenas_for(tuning.workload, seed=0) as arenas,
        ):
            rig = Rig(self.device, arenas, self.settings.objective)
            loop = Loop(tuning.workload, rig, tuning.space.form, log, progress, self.stop)
            loop.run(tuning.proposer, trials)
            tuning.proposer.close()
            search_s = progress.elapsed_s
        if self.stop.is_set():
            self.tell(f"{name}: stopped; what was tried is kept in {log.folder}")
            raise KeyboardInterrupt
        if len(log.trials) < trials:
            self.tell(f"{name}: the search found no more than {len(log.trials)} schedules")
        return search_s

    def _is_written(self, tuning: _Tuning) -> bool:
        """Whether the record file has what `_finish` would put there, as far as can be told."""
        try:
            path = self.folder / file_name(tuning.workload)
            file = load_records(path, [tuning.space.form])
        except GpuEnergyError:
            return False  # there is none, or it is damaged
        trials, settings = tuning.log.trials, self.settings
        good = [trial for trial in trials if trial.good]
        found = contenders(good, tuning.log, tuning.space.form, {})
        return (
            self.is_kept(tuning.workload)
            and file.gpu == gpu_name(self.device)
            and file.objective == settings.objective
            and file.trials_total == len(trials)
            and file.trials_valid == len(good)
            and len(file.records) == len(representatives(found, settings.keep))
            and all((record.measured is not None) == settings.energy for record in file.records)
        )

    def _finish(self, tuning: _Tuning, search_s: float) -> TuneResult:
        """Choose, confirm and write."""
        workload, log, settings = tuning.workload, tuning.log, self.settings
        chooser = Chooser(
            tuning.space,
            log,
            settings.keep,
            settings.objective,
            self.confirm,
            measures=settings.energy,
        )
        chosen = chooser.choose(self.tell, self.stop)
        path = self._write(tuning, chosen)
        times_ms = [log.trials[one.index].time_ms or float("inf") for one in chosen]
        return TuneResult(
            workload=workload.name,
            path=path,
            started=tuning.started.isoformat(timespec="seconds"),
            tried=len(log.trials),
            valid=sum(trial.good for trial in log.trials),
            kept=len(chosen),
            best_ms=min(times_ms),
            best_gflops=workload.flops / min(times_ms) / 1e6,
            gflops=tuple(workload.flops / time_ms / 1e6 for time_ms in times_ms),
            rejected=chooser.rejected,
            search_s=search_s,
            elapsed_s=tuning.elapsed_s,
            energy_j=_since(tuning.before_j, _energy_j(self.device)),
        )

    def _write(self, tuning: _Tuning, chosen: Sequence[Chosen]) -> Path:
        log = tuning.log
        best: Band = "fastest" if self.settings.objective == Metric.TIME else "best"
        records = [
            Record(
                rank,
                best if one.band == "fastest" else one.band,
                log.recipes[one.index],
                one.measured,
            )
            for rank, one in enumerate(chosen, start=1)
        ]
        file = RecordFile(
            workload=tuning.workload,
            form=tuning.space.form,
            gpu=gpu_name(self.device),
            driver=self.device.describe().get("driver", "unknown"),
            toolchain=tuning.space.toolchain(records[0].recipe),
            date=datetime.now(UTC).date().isoformat(),
            trials_total=len(log.trials),
            trials_valid=sum(trial.good for trial in log.trials),
            records=tuple(records),
            objective=self.settings.objective,
        )
        path = self.folder / file_name(tuning.workload)
        dump_records(file, path)
        return path


class _Tuning:
    """The tuning of one workload that has begun: its raw results and its proposer.

    Attributes:
        proposer: None when there are trials enough.
    """

    def __init__(self, tuner: Tuner, workload: Workload) -> None:
        self.workload = workload
        self.space = tuner.make_space(workload)
        self.proposer: Proposer | None = None
        self._device = tuner.device
        folder = tuner.folder / workload.name / "raw"
        with ExitStack() as stack:
            log = stack.enter_context(RawLog(folder, workload, tuner.device, self.space.form))
            self.log = log
            if log.trials and not tuner.settings.resume:
                raise InputError(
                    f"{folder} holds {len(log.trials)} trials already: continue them with --resume "
                    "(--trials counts those too), or name another folder with --out."
                )
            if len(log.trials) < tuner.settings.trials:
                self.proposer = self.space.propose(folder, lambda: self._known(tuner))
                stack.callback(self.proposer.close)
            self._stack = stack.pop_all()
        self.begin()

    def _known(self, tuner: Tuner) -> Sequence[Feedback]:
        trials = self.log.trials.copy()  # in another thread there are more meanwhile
        return feedback(tuner.settings.objective, self.log.recipes, trials, trials)

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


def _energy_j(device: Device) -> float | None:
    """What the card has taken since its driver was loaded; None where it does not tell."""
    try:
        return float(device.nvml.nvmlDeviceGetTotalEnergyConsumption(device.handle)) / 1e3
    except device.nvml.NVMLError:
        return None


def _since(before_j: float | None, after_j: float | None) -> float | None:
    return None if before_j is None or after_j is None else after_j - before_j
