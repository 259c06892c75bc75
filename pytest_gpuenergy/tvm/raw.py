"""The raw results of a search, on disk: every trial, written as soon as it has ended.

A folder holds MetaSchedule's own database (a line for every trial, failed ones too), and
``trials.jsonl``, which tells how each ended. Both are only ever added to, line by line, so that a
search that is killed loses at most the trial in flight, and can be continued.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from io import TextIOWrapper
from pathlib import Path
from types import TracebackType
from typing import Any

from pytest_gpuenergy.control.lease import enforced_limit_w
from pytest_gpuenergy.devices.device import Device
from pytest_gpuenergy.support.errors import InputError, OutputError
from pytest_gpuenergy.support.files import lock, open_file, write_atomically
from pytest_gpuenergy.support.json_input import FormError, parse, read_bytes
from pytest_gpuenergy.tvm.database import (
    RECORD_FILE,
    WORKLOAD_FILE,
    DatabaseRecord,
    load_database,
)
from pytest_gpuenergy.tvm.record_form import check_record
from pytest_gpuenergy.tvm.trials import IDENTITY_FILE, TRIALS_FILE, Trial, read_trials
from pytest_gpuenergy.workloads.registry import from_parameters, to_parameters
from pytest_gpuenergy.workloads.workload import Workload

_LARGEST_BYTES = 1 << 20
_LARGEST_LIST_BYTES = 1 << 30
_FAILED_S = 1e10


class RawLog:
    """A folder of raw results, open for more; a context manager.

    Args:
        folder: created, or continued if it holds a search of the same.
        workload: what is searched.
        device: where.

    Raises:
        InputError: the folder holds a search of something else, on another GPU or under another
            power limit, is damaged, cannot be written, or another process writes to it.
    """

    def __init__(self, folder: Path, workload: Workload, device: Device) -> None:
        self.folder = folder
        identity = {
            "workload": to_parameters(workload),
            "gpu": gpu_name(device),
            "architecture": device.architecture,
            "power_limit_w": enforced_limit_w(device),
        }
        with ExitStack() as stack:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                _identify(folder / IDENTITY_FILE, identity)
                # Not buffered beyond a line, so that what is known survives a kill.
                self._events = stack.enter_context(_opened(folder / TRIALS_FILE))
                _lock(self._events, folder)
                self.trials = _read_trials(folder / TRIALS_FILE)
                records = _read_records(folder)
                self.records = [record.text for record in records]
                self._agree()
                _check(folder / RECORD_FILE, records, self.trials)
                self._database = stack.enter_context(_opened(folder / RECORD_FILE))
            except OSError as error:
                path = error.filename or folder
                raise InputError(f"{path} cannot be written: {error.strerror}.") from None
            stack.pop_all()

    def keep_workload(self, stored: str) -> None:
        """Write ``stored``, the line of ``database_workload.json``, if there is none yet.

        Raises:
            OutputError: it cannot be written.
        """
        path = self.folder / WORKLOAD_FILE
        if not path.exists():
            with _written(path):
                write_atomically(path, stored + "\n")

    def add(self, record: str, trial: Trial) -> Trial:
        """Write down how the trial of ``record`` ended; its ``index`` is set here.

        Raises:
            OutputError: it cannot be written.
        """
        trial = replace(trial, index=len(self.trials))
        content = json.loads(record)
        content[1] = [_FAILED_S if trial.time_ms is None else trial.time_ms / 1e3]
        text = json.dumps(content, separators=(",", ":"))
        with _written(self.folder / RECORD_FILE):
            self._database.write(f"[0,{text}]\n")
        self._write(trial)
        self.trials.append(trial)
        self.records.append(text)
        return trial

    def amend(self, trial: Trial) -> None:
        """Write down what has become known of a trial since.

        Raises:
            OutputError: it cannot be written.
        """
        self._write(trial)
        self.trials[trial.index] = trial

    def __enter__(self) -> RawLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for stream in (self._database, self._events):
            with suppress(OSError):  # of a line that could not be written, which has been told
                stream.close()

    def _write(self, trial: Trial) -> None:
        known = {name: value for name, value in asdict(trial).items() if value is not None}
        with _written(self.folder / TRIALS_FILE):
            self._events.write(json.dumps(known) + "\n")

    def _agree(self) -> None:
        """Drop what a killed search wrote in one of the files only."""
        count = min(len(self.trials), len(self.records))
        if len(self.records) > count:
            _truncate(self.folder / RECORD_FILE, count)
        if len(self.trials) > count:
            raise InputError(
                f"{self.folder / RECORD_FILE} has {len(self.records)} trials and "
                f"{TRIALS_FILE} {len(self.trials)}: restore them, or name another folder with "
                "--out."
            )
        del self.records[count:]


@contextmanager
def _written(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written ({error.strerror}): make room, then go on with --resume."
        ) from None


def gpu_name(device: Device) -> str:
    """The device's name for record files; an emulated one is called so."""
    return f"{device.name} (emulated)" if device.emulated else device.name


def trace_of(record: str) -> str:
    """What makes a schedule the same as another one."""
    return json.dumps(json.loads(record)[0], separators=(",", ":"))


def _opened(path: Path) -> TextIOWrapper:
    return open(path, "a", buffering=1, encoding="utf-8", opener=open_file)


def _lock(stream: TextIOWrapper, folder: Path) -> None:
    """One search at a time writes to a folder; the lock goes with the process."""
    if not lock(stream.fileno(), wait=False):
        raise InputError(
            f"Another process is searching in {folder}: wait for it to end, or name another folder "
            "with --out."
        )


def _identify(path: Path, identity: dict[str, Any]) -> None:
    if not path.exists() or not path.stat().st_size:  # as a full disk may have left it
        write_atomically(path, json.dumps(identity, indent=2) + "\n")
        return
    try:
        found = parse(read_bytes(path, "description of a search", _LARGEST_BYTES))
    except FormError as error:
        raise InputError(
            f"{path} cannot be used, because {error}: name another folder with --out."
        ) from None
    if _with_kind(found) != identity:
        limit_w = identity["power_limit_w"]
        under = "" if limit_w is None else f" under {limit_w:g} W"
        raise InputError(
            f"{path.parent} holds another search than one of {identity['workload']['name']} on "
            f"{identity['gpu']}{under}: name another folder with --out."
        )


def _with_kind(found: Any) -> Any:
    """What a search said of itself; those from before there were kinds named none."""
    try:
        return {**found, "workload": to_parameters(from_parameters(found["workload"]))}
    except (InputError, TypeError, KeyError, ValueError):
        return None


def _read_trials(path: Path) -> list[Trial]:
    if not path.exists():
        return []
    _drop_torn_line(path)
    return read_trials(path)


def _read_records(folder: Path) -> tuple[DatabaseRecord, ...]:
    path = folder / RECORD_FILE
    if not path.exists():
        return ()
    _drop_torn_line(path)
    return load_database(path).records


def _check(path: Path, records: Sequence[DatabaseRecord], trials: Sequence[Trial]) -> None:
    """Refuse records that are programs: TVM is given those of the trials that ran."""
    for record, trial in zip(records, trials, strict=False):
        if record.failed and trial.time_ms is None:
            continue
        try:
            check_record(json.loads(record.text))
        except FormError as error:
            raise InputError(
                f"Line {record.line} of {path} cannot be used, because {error}: restore the file, "
                "or name another folder with --out."
            ) from None


def _drop_torn_line(path: Path) -> None:
    if path.stat().st_size > _LARGEST_LIST_BYTES:
        return  # it will be refused
    with open(path, "rb+", opener=open_file) as stream:
        content = stream.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            stream.truncate(whole)


def _truncate(path: Path, lines: int) -> None:
    kept = path.read_bytes().splitlines(keepends=True)[:lines]
    write_atomically(path, b"".join(kept))
