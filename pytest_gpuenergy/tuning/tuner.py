"""The tuner: searches workload by workload, chooses kernels and writes their record files."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from threading import Event
from time import monotonic
from typing import TextIO

from pytest_gpuenergy.devices import Device
from pytest_gpuenergy.engine import (
    TIMEOUT_S,
    Rig,
    Verifier,
    quick_job,
    save_arrays,
    seeded_arenas,
)
from pytest_gpuenergy.record import Metric
from pytest_gpuenergy.support import (
    FormError,
    GpuEnergyError,
    InputError,
    KernelFault,
    counted,
    csv_text,
    disk_folder,
    emulated_mark,
    is_there,
    write_atomically,
)
from pytest_gpuenergy.tuning.choose import (
    Chooser,
    Chosen,
    TuneSettings,
    contenders,
    representatives,
)
from pytest_gpuenergy.tuning.loop import SearchLoop, SearchProgress, feedback
from pytest_gpuenergy.tuning.raw_log import RawLog, gpu_name
from pytest_gpuenergy.tuning.records import (
    PERFORMANCE_FOLDER,
    Band,
    Record,
    RecordFile,
    dump_records,
    file_name,
    read_records,
)
from pytest_gpuenergy.tuning.search_space import Feedback, Proposer, RecipeForm, SearchSpace
from pytest_gpuenergy.tuning.team_rig import ReferenceKernel, TeamRig
from pytest_gpuenergy.tuning.tuning_gpus import TuningGpus
from pytest_gpuenergy.workloads import Workload


@dataclass(frozen=True)
class Tuner:
    """Tunes workloads on one device, one after the other.

    Attributes:
        gpus: the GPUs on which candidates run.
        make_space: returns the search space of a workload; raises InputError if it is empty.
        folder: the folder of the record files. Raw results are written to ``<workload>/raw`` in it;
            a form with a variant appends it, as in ``raw-template``.
        settings: what to do.
        tell: called with lines of progress.
        live: a terminal on which to draw the progress; None for lines only.
        stop: set by the caller to end early.
        is_kept: whether the caller has stored everything that belongs to a record file; otherwise
            it is produced again.
    """

    gpus: TuningGpus
    make_space: Callable[[Workload], SearchSpace]
    folder: Path
    settings: TuneSettings
    tell: Callable[[str], None]
    live: TextIO | None
    stop: Event
    is_kept: Callable[[Path], bool] = lambda _: True

    @property
    def device(self) -> Device:
        """The first GPU, for which kernels are compiled."""
        return self.gpus.devices[0]

    def tune(self, workloads: Sequence[Workload]) -> Iterator[TuneResult]:
        """Search workload by workload, and write the record file of each.

        A workload is skipped as complete if its record file already is as this search would leave
        it. The search for the next workload starts while the kernels of the current one are
        confirmed. A workload that cannot be tuned is reported immediately; the error is raised
        when the others are done.

        Raises:
            InputError: a folder contains another search, or one that is not to be resumed; a space
                is empty; or no candidate runs.
            KeyboardInterrupt: ``stop`` was set; the raw results contain all trials.
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
                        if not current.incomplete and self._is_written(current):
                            continue
                        current.check_resumed()
                        search_s = self._search(current)
                        if self._is_written(current):
                            continue
                        if following is not None:
                            with suppress(GpuEnergyError):  # reported when it is tuned itself
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
        """Try candidates, and return the wall time in seconds."""
        name, log, trials = tuning.workload.name, tuning.log, self.settings.trials
        tuning.begin()
        if tuning.proposer is None:
            return 0.0
        team = self.gpus.team
        count = "" if len(self.gpus.devices) < 2 or team is None else f"{len(team.working)} x "
        self.tell(f"{name}: searching on {count}{gpu_name(self.device)} with {tuning.space.effort}")
        with (
            SearchProgress(
                f"{name}{emulated_mark(self.device.emulated)}",
                trials,
                log.trials.copy(),
                self.tell,
                self.live,
            ) as progress,
            closing(Verifier(self.device, TIMEOUT_S, None)) as verifier,
            self._rig(tuning) as rig,
        ):
            if not self.gpus.remote:  # for the kernels that are kept
                verifier.expect_workload(tuning.workload)
            loop = SearchLoop(tuning.workload, rig, tuning.space.form, log, progress, self.stop)
            loop.run(tuning.proposer, trials)
            tuning.proposer.close()
            search_s = progress.elapsed_s
        if self.stop.is_set():
            self.tell(f"{name}: stopped; its trials are kept in {log.folder}")
            raise KeyboardInterrupt
        if len(log.trials) < trials:
            self.tell(f"{name}: the search found only {len(log.trials)} candidates")
        return search_s

    @contextmanager
    def _rig(self, tuning: _Tuning) -> Iterator[Rig | TeamRig]:
        """Open the place where candidates are evaluated: this process, or the team of GPUs."""
        workload, objective = tuning.workload, self.settings.objective
        # After a search on several GPUs, the figures of a single one must be comparable to theirs.
        gpus = self.gpus
        several = len(gpus.devices) > 1 or any(trial.gpu for trial in tuning.log.trials)
        if gpus.team is None or not (several or gpus.remote):
            with seeded_arenas(workload, 0, self.device.arrays) as arenas:
                yield Rig(self.device, arenas, objective)
            return
        for device in gpus.devices:
            device.renew()  # so that no child of this process keeps a context on the GPU
        with disk_folder() as folder:
            inputs = folder / save_arrays(folder, workload.make_inputs(0))
            yield TeamRig(gpus.team, self.device, inputs, objective, tuning.reference(objective))

    def _is_written(self, tuning: _Tuning) -> bool:
        """Return whether the record file has what `_finish` would write, and report it if so."""
        try:
            path = self.folder / file_name(tuning.workload, tuning.space.form.variant)
            file = read_records(path)
            _check_recipes(file, tuning.space.form)
        except (GpuEnergyError, FormError):
            return False  # missing or damaged
        trials, settings = tuning.log.trials, self.settings
        good = [trial for trial in trials if trial.good]
        contending = contenders(good, tuning.log, tuning.space.form, {})
        kept = representatives(contending, settings.keep, best_only=settings.best_only)
        written = (
            self.is_kept(path)
            and file.tuner == tuning.space.form.tuner
            and file.gpu == gpu_name(self.device)
            and file.objective == settings.objective
            and file.trials_total == len(trials)
            and file.trials_valid == len(good)
            and Counter(record.band for record in file.records)
            == Counter(self._band(kernel.band) for kernel in kept)
            and all((record.measured is not None) == settings.energy for record in file.records)
        )
        if written:
            self.tell(
                f"{tuning.workload.name}: already complete, with {counted(len(trials), 'trial')}; "
                f"{counted(len(kept), 'kernel')} in {path}"
            )
        return written

    def _band(self, band: Band) -> Band:
        """Return the band's name in a record file: ``fastest`` is ``best`` for other objectives."""
        best: Band = "fastest" if self.settings.objective == Metric.TIME else "best"
        return best if band == "fastest" else band

    def _finish(self, tuning: _Tuning, search_s: float) -> TuneResult:
        """Choose kernels, confirm them and write the record file."""
        workload, log, settings = tuning.workload, tuning.log, self.settings
        chooser = Chooser(tuning.space, log, settings, self.gpus)
        chosen = chooser.choose(self.tell, self.stop)
        path = self._write(tuning, chosen)
        before_j, after_j = tuning.before_j, _energy_j(self.gpus.devices)
        times_ms = [log.trials[kernel.index].time_ms or float("inf") for kernel in chosen]
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
            energy_j=None if before_j is None or after_j is None else after_j - before_j,
            gpu=gpu_name(self.device),
            emulated=self.device.emulated,
        )

    def _write(self, tuning: _Tuning, chosen: Sequence[Chosen]) -> Path:
        log = tuning.log
        records = [
            Record(rank, self._band(kernel.band), log.recipes[kernel.index], kernel.measured)
            for rank, kernel in enumerate(chosen, start=1)
        ]
        file = RecordFile(
            workload=tuning.workload,
            tuner=tuning.space.form.tuner,
            gpu=gpu_name(self.device),
            driver=self.device.describe().get("driver", "unknown"),
            toolchain=tuning.space.toolchain(records[0].recipe),
            date=datetime.now(UTC).date().isoformat(),
            trials_total=len(log.trials),
            trials_valid=sum(trial.good for trial in log.trials),
            records=tuple(records),
            objective=self.settings.objective,
        )
        path = self.folder / file_name(tuning.workload, tuning.space.form.variant)
        try:
            _check_recipes(file, tuning.space.form)
        except FormError as error:
            raise InputError(
                f"The records of {file.workload.name} are inconsistent: {error}."
            ) from None
        dump_records(file, path)
        return path


def _check_recipes(file: RecordFile, form: RecipeForm) -> None:
    """Check that the recipes of a file have this form; raise FormError otherwise."""
    for record in file.records:
        form.check(json.loads(record.recipe), file.workload)


class _Tuning:
    """The tuning of one workload in progress: its raw results and its proposer.

    Attributes:
        proposer: None if there are enough trials already, or the search is not to be continued.
        incomplete: whether there are fewer trials than were asked for.
    """

    def __init__(self, tuner: Tuner, workload: Workload) -> None:
        self.workload = workload
        self.space = tuner.make_space(workload)
        self.proposer: Proposer | None = None
        self._devices = tuner.gpus.devices
        variant = self.space.form.variant
        folder = tuner.folder / workload.name / (f"raw-{variant}" if variant else "raw")
        with ExitStack() as stack:
            log = stack.enter_context(RawLog(folder, workload, tuner.device, self.space.form))
            self.log = log
            self._found = len(log.trials)
            self._resume = tuner.settings.resume
            self.incomplete = self._found < tuner.settings.trials
            if self.incomplete and (self._resume or not self._found):
                self.proposer = self.space.propose(folder, lambda: self._known(tuner))
                stack.callback(self.proposer.close)
            self._stack = stack.pop_all()
        self.begin()

    def _known(self, tuner: Tuner) -> Sequence[Feedback]:
        trials = self.log.trials.copy()  # another thread may append to it
        return feedback(tuner.settings.objective, self.log.recipes, trials, trials)

    def reference(self, objective: Metric) -> ReferenceKernel | None:
        """Return the kernel to which candidates on several cards are compared; None if none ran."""
        good = [trial for trial in self.log.trials if trial.good]
        if objective is not Metric.TIME:  # prefer a kernel whose power was measured
            good.sort(key=lambda trial: trial.power_w is None)
        for trial in good:
            with suppress(KernelFault):
                kernel = self.space.kernel(self.log.recipes[trial.index])
                return ReferenceKernel(quick_job(kernel, self.workload), trial)
        return None

    def check_resumed(self) -> None:
        """Check that a search found in the folder may be continued.

        Raises:
            InputError: the search must not be resumed.
        """
        if self._found and not self._resume:
            raise InputError(
                f"{self.log.folder} already contains {self._found} trials: continue with --resume "
                "(--trials includes them), or name another folder with --out."
            )

    def begin(self) -> None:
        """Start counting wall time and joules."""
        self.started = datetime.now(UTC)
        self.before_j = _energy_j(self._devices)
        self._began_s = monotonic()

    @property
    def elapsed_s(self) -> float:
        """The wall time since `begin`, in seconds."""
        return monotonic() - self._began_s

    def close(self) -> None:
        """Stop whatever is in progress. Idempotent."""
        self._stack.close()

    def __enter__(self) -> _Tuning:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _energy_j(devices: Sequence[Device]) -> float | None:
    """Return the energy that the cards have used since their driver was loaded, in joules.

    Return None without an energy counter, and for several emulated cards: each of their candidates
    runs on a card of its own.
    """
    if len(devices) > 1 and devices[0].emulated:
        return None
    total_j = 0.0
    for device in devices:
        try:
            total_j += device.nvml.nvmlDeviceGetTotalEnergyConsumption(device.handle) / 1e3
        except device.nvml.NVMLError:
            return None
    return total_j


TABLE_FILE = "tuning.csv"
_LISTS = ("gflops", "rejected")


@dataclass(frozen=True)
class TuneResult:
    """The result of tuning one workload.

    Attributes:
        workload: the workload's name.
        path: the record file.
        started: the start time in ISO 8601.
        tried: the number of trials in the folder, of which ``valid`` ran.
        kept: the number of kernels in the record file.
        best_ms: the time of one launch of the best kernel, in its trial.
        best_gflops: the rate of that launch in GFLOP/s.
        gflops: the rate of each kernel in the record file, in its order.
        rejected: the reasons why chosen kernels were replaced.
        search_s: the wall time of this search.
        elapsed_s: the wall time of the search and everything after it.
        energy_j: the energy that the card used meanwhile; None if it has no energy counter.
        gpu: the GPU's name, marked if it is emulated.
        emulated: whether all figures are those of an emulated GPU, recorded or modelled.
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
    gpu: str = ""
    emulated: bool = False


def is_kept(path: Path) -> bool:
    """Return whether `keep_outcome` has completed for this record file."""
    return is_there(path.parent / PERFORMANCE_FOLDER / path.name)


def keep_outcome(folder: Path, result: TuneResult) -> None:
    """Add a row to ``tuning.csv``, and write the kernels' rates, one integer GFLOP/s per line.

    The rates are written to ``performance/``, under the name of the record file. For an emulated
    GPU the file begins with a comment that says so.

    Raises:
        InputError: a file cannot be written.
    """
    path = folder / TABLE_FILE
    names = [field.name for field in fields(TuneResult) if field.name not in _LISTS]
    try:
        new = not is_there(path) or not path.stat().st_size  # as a full disk may have left it
        if not new:
            _complete(path, names)
        with path.open("a", newline="", encoding="utf-8") as stream:
            rows = [[getattr(result, name) for name in names]]
            stream.write(csv_text([names, *rows] if new else rows))
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}.") from None
    comment = f"{result.gpu}: recorded or modelled figures" if result.emulated else ""
    write_performance(folder / PERFORMANCE_FOLDER / result.path.name, result.gflops, comment)


def _complete(path: Path, names: Sequence[str]) -> None:
    """Add the columns that the table of an older release lacks, with empty cells."""
    with path.open(newline="", encoding="utf-8") as stream:
        header, *rows = csv.reader(stream)
    missing = names[len(header) :]
    if missing and list(names[: len(header)]) == header:
        write_atomically(path, csv_text([names, *([*row, *[""] * len(missing)] for row in rows)]))


def write_performance(path: Path, gflops: Iterable[float], comment: str = "") -> None:
    """Write the rounded GFLOP/s, one integer per line; the file is complete or not written at all.

    A ``comment`` is a line before them that begins with ``#``.

    Raises:
        InputError: it cannot be written.
    """
    text = f"# {comment}\n" if comment else ""
    text += "".join(f"{round(figure)}\n" for figure in gflops)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror}): choose a file in a folder that you may "
            "write to."
        ) from None
