"""Tunes one workload: search, choose representatives, prove and measure them, write them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import Any

from pytest_gpuenergy.devices.device import Device
from pytest_gpuenergy.errors import InputError, KernelFault
from pytest_gpuenergy.kernels.database import Database, DatabaseRecord, load_database
from pytest_gpuenergy.kernels.kernel import Kernel, Origin
from pytest_gpuenergy.kernels.records import (
    Band,
    Measured,
    Record,
    RecordFile,
    dump_records,
    file_name,
)
from pytest_gpuenergy.kernels.representatives import Trial, representatives
from pytest_gpuenergy.tuning.journal import JOURNAL_FILE, Journal
from pytest_gpuenergy.tuning.lower import conv2d_module, cuda_target, lower_record, to_kernel
from pytest_gpuenergy.tuning.metaschedule import SearchSettings, search
from pytest_gpuenergy.tuning.raw import gpu_name, open_raw
from pytest_gpuenergy.tuning.requirements import installed_tvm
from pytest_gpuenergy.tuning.workbench import Workbench
from pytest_gpuenergy.verification import arenas_for
from pytest_gpuenergy.workloads.conv2d import Conv2d
from pytest_gpuenergy.workloads.workload import Workload

Verify = Callable[[Device, Kernel, Workload], object]
"""Proves a kernel right, or raises KernelFault."""

Measure = Callable[[Device, Kernel, Workload], Measured | None]
"""Measures a kernel; raises KernelFault when it fails, gives None when there are no figures."""


@dataclass(frozen=True)
class TuneResult:
    """What became of one workload's tuning.

    ``tried`` and ``valid`` count the trials of the database, ``rejected`` says why chosen kernels
    were replaced, and ``elapsed_s`` is the wall time of the search and of all that followed.
    """

    workload: str
    path: Path
    tried: int
    valid: int
    kept: int
    best_ms: float
    rejected: tuple[str, ...]
    search_s: float
    elapsed_s: float


@dataclass(frozen=True)
class _Candidate:
    record: DatabaseRecord
    kernel: Kernel


@dataclass(frozen=True)
class _Chosen:
    band: Band
    record: DatabaseRecord
    measured: Measured | None


@dataclass(frozen=True)
class Tuner:
    """Tunes workloads on one device, one after the other.

    Attributes:
        device: where candidates run.
        folder: where record files go; raw databases go into ``<workload>/raw`` in it.
        keep: how many kernels a record file gets.
        verify: proves a chosen kernel right.
        measure: measures power and energy of a chosen kernel; None leaves the figures out.
        tell: called with lines of progress.
        stop: set by someone else to end early.
    """

    device: Device
    folder: Path
    keep: int
    verify: Verify
    measure: Measure | None
    tell: Callable[[str], None]
    stop: Event

    def tune(self, workload: Conv2d, settings: SearchSettings) -> TuneResult:
        """Search, and write the record file.

        Raises:
            InputError: the folder holds another search, or no candidate runs.
            KeyboardInterrupt: told to stop; what was tried is in the raw database.
        """
        raw = open_raw(self.folder / workload.name / "raw", workload, self.device)
        # The device's processes start here, so that no trial pays for it.
        driver = self.device.describe().get("driver", "unknown")
        with Journal(raw, workload.name, settings.trials, self.tell) as journal:
            if settings.trials:
                self._search(workload, settings, raw, journal)
            search_s = journal.elapsed_s
            if self.stop.is_set():
                self.tell(f"{workload.name}: stopped; what was tried is kept in {raw}")
                raise KeyboardInterrupt
            database = load_database(raw)
            candidates = self._lower_all(workload, database, settings.threads)
            if not candidates:
                raise InputError(
                    f"None of the {len(database.records)} trials of {workload.name} ran: see why "
                    f"in {raw / JOURNAL_FILE}, or try more with --trials."
                )
            chosen, rejected = self._choose(workload, candidates)
            path = self._write(workload, database, chosen, driver)
            return TuneResult(
                workload=workload.name,
                path=path,
                tried=len(database.records),
                valid=len(database.valid),
                kept=len(chosen),
                best_ms=min(c.record.time_ms for c in chosen),
                rejected=rejected,
                search_s=search_s,
                elapsed_s=journal.elapsed_s,
            )

    def _search(
        self, workload: Conv2d, settings: SearchSettings, raw: Path, journal: Journal
    ) -> None:
        self.tell(
            f"{workload.name}: searching on {gpu_name(self.device)} with {settings.threads} "
            f"threads, {settings.batch} trials a batch"
        )
        module, target = conv2d_module(workload), cuda_target(self.device.architecture)
        names = [tensor.name for tensor in workload.tensors]

        def lower(scheduled: Any) -> Kernel:
            return to_kernel(scheduled, target, names)

        with arenas_for(workload, seed=0) as arenas:
            bench = Workbench(
                self.device, workload, arenas, journal, lower, settings.threads, self.stop
            )
            search(module, target, raw, bench, settings, self.stop)
        journal.tell()

    def _lower_all(self, workload: Conv2d, database: Database, threads: int) -> list[_Candidate]:
        module = conv2d_module(workload)

        def lower(record: DatabaseRecord) -> _Candidate | None:
            try:
                return _Candidate(record, lower_record(module, record.text, workload))
            except KernelFault:
                return None  # from another version of TVM

        with ThreadPoolExecutor(threads, thread_name_prefix="lower") as pool:
            return [c for c in pool.map(lower, database.valid) if c is not None]

    def _choose(
        self, workload: Conv2d, candidates: Sequence[_Candidate]
    ) -> tuple[list[_Chosen], tuple[str, ...]]:
        """Representatives that are right; a wrong one is replaced by the next nearest."""
        trials = [
            Trial(c.record.time_ms, (c.record.trace_text, c.kernel.digest)) for c in candidates
        ]
        good: dict[int, Measured | None] = {}
        wrong: dict[int, str] = {}
        while True:
            picks = representatives(trials, self.keep, wrong)
            fresh = [pick for pick in picks if pick.index not in good]
            if not fresh:
                break
            self.device.prepare([candidates[pick.index].kernel for pick in fresh])
            self.tell(f"{workload.name}: checking {len(fresh)} chosen kernels")
            for pick in fresh:
                if self.stop.is_set():
                    raise KeyboardInterrupt
                kernel = candidates[pick.index].kernel
                try:
                    good[pick.index] = self._prove(workload, kernel)
                except KernelFault as fault:
                    wrong[pick.index] = f"{kernel.short_digest}: {fault.outcome}: {fault}"
                    self.tell(f"{workload.name}: replacing {wrong[pick.index]}")
        if not picks:
            raise InputError(
                f"No kernel of {workload.name} is right ({len(wrong)} checked), the first because "
                f"{next(iter(wrong.values()))}"
            )
        if len(picks) < self.keep:
            self.tell(f"{workload.name}: only {len(picks)} of {self.keep} kernels to keep")
        chosen = [
            _Chosen(pick.band, candidates[pick.index].record, good[pick.index]) for pick in picks
        ]
        return chosen, tuple(wrong.values())

    def _prove(self, workload: Conv2d, kernel: Kernel) -> Measured | None:
        named = replace(kernel, origin=Origin("tvm-metaschedule"))
        self.verify(self.device, named, workload)
        return None if self.measure is None else self.measure(self.device, named, workload)

    def _write(
        self, workload: Conv2d, database: Database, chosen: Sequence[_Chosen], driver: str
    ) -> Path:
        records = [
            Record(rank, c.band, c.record.text, c.measured)
            for rank, c in enumerate(chosen, start=1)
        ]
        file = RecordFile(
            workload=workload,
            gpu=gpu_name(self.device),
            driver=driver,
            tvm=installed_tvm() or "unknown",
            target=json.dumps(records[0].content[2]),
            date=datetime.now(UTC).date().isoformat(),
            trials_total=len(database.records),
            trials_valid=len(database.valid),
            records=tuple(records),
        )
        path = self.folder / file_name(workload)
        dump_records(file, path)
        return path
