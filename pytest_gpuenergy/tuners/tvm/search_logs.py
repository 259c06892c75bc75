"""Logs of searches with Ansor or MetaSchedule: data, never code. This needs no TVM.

The trials that represent a search are chosen from its log, and can be written to another log. A log
of TVM's auto-scheduler (Ansor) has one JSON object per line. ``i`` holds the task (workload key,
target, ...) and the state (the steps of the schedule). ``r`` holds the costs in seconds, an error
number, how long the trial took and when it ended. ``v`` is the format's version (TVM v0.12,
src/auto_scheduler/measure_record.cc). TVM has dropped the auto-scheduler, so the times of its
trials can be read, but their kernels cannot be rebuilt.
"""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import Struct

from pytest_gpuenergy.record import AboveZero
from pytest_gpuenergy.support import (
    FormError,
    InputError,
    decode,
    is_file,
    is_folder,
    read_bytes,
    read_unpacked,
    write_atomically,
)
from pytest_gpuenergy.tuners.tvm.database import (
    RECORD_FILE,
    beside,
    load_database,
    workload_path,
)
from pytest_gpuenergy.tuners.tvm.operators import OPERATORS
from pytest_gpuenergy.tuners.tvm.record_form import compact, is_failed, tensor_argument
from pytest_gpuenergy.tuning import Band, Contender, representatives
from pytest_gpuenergy.workloads import Workload

_MAX_BYTES = 1 << 30
_MAX_ANSOR_BYTES = 256 << 20


@dataclass(frozen=True)
class LoggedSearch:
    """The trials of one workload's search.

    Attributes:
        path: the log.
        tuner: ``ansor`` or ``metaschedule``.
        total: the number of trials, including those that failed.
        lines: the line numbers, from 1, of the trials that ran.
        trials: the trials that ran.
        flops: the floating-point operations of one launch; None if unknown.
    """

    path: Path
    tuner: str
    total: int
    lines: tuple[int, ...]
    trials: tuple[Contender, ...]
    flops: int | None


@dataclass(frozen=True)
class Sampled:
    """A chosen trial: its line in the log, its band, the time of a launch, and its GFLOP/s."""

    line: int
    band: Band
    time_ms: float
    gflops: float | None


def load_search(path: Path, shape: Workload | None = None) -> LoggedSearch:
    """Read a log of Ansor or a database of MetaSchedule, plain or compressed.

    Args:
        path: the file, or the folder of a MetaSchedule database.
        shape: the workload, if the log does not contain its sizes.

    Raises:
        InputError: the file is damaged or something else, contains several workloads, contains no
            trial that ran, or is for another workload than ``shape``.
    """
    is_ansor = False
    if not is_folder(path):  # a trial of Ansor is an object, one of MetaSchedule a list
        content = read_unpacked(path, "log", _MAX_BYTES)
        is_ansor = next(_data_lines(content), (0, b""))[1].startswith(b"{")
    search = _ansor_search(path, shape) if is_ansor else _database_search(path, shape)
    if not search.trials:
        raise InputError(
            f"None of the {search.total} trials of {path} ran, so none can be chosen: name another "
            "log."
        )
    return search


def sample(search: LoggedSearch, keep: int) -> list[Sampled]:
    """Choose ``keep`` trials with `representatives`, the fastest first.

    Trials of equal schedules count once, so there may be fewer.

    Raises:
        InputError: a time is so short that the GFLOP/s are infinite.
    """
    return [
        Sampled(search.lines[pick.index], pick.band, time_ms, _gflops(search, time_ms))
        for pick in representatives(search.trials, keep)
        for time_ms in [search.trials[pick.index].time_ms]
    ]


def _ansor_search(path: Path, shape: Workload | None) -> LoggedSearch:
    """Read a log of the auto-scheduler, which ranks trials by the mean of their times."""
    total, keys, lines, trials = 0, set(), [], []
    for line, text in _data_lines(read_unpacked(path, "log", _MAX_ANSOR_BYTES)):
        try:
            entry = decode(text, _AnsorLine, "the line")
            (task, state), (costs_s, error_number, *_) = entry.i, entry.r
            if not task or not isinstance(task[0], str):
                raise FormError("its task has no workload key")
            if not costs_s and not error_number:
                raise FormError("it has no costs, although the trial did not fail")
        except FormError as error:
            raise InputError(
                f"Line {line} of the log {path} cannot be used, because {error}: remove the line "
                "if a search was interrupted there, otherwise name a log written by TVM's "
                "auto-scheduler."
            ) from None
        total += 1
        keys.add(task[0])
        if not error_number and not is_failed(costs_s):
            lines.append(line)
            trials.append(Contender(1e3 * sum(costs_s) / len(costs_s), (compact(state),)))
    _require_one(path, len(keys))
    if shape is None:
        shape = _logged_workload(path, keys)
    flops = None if shape is None else shape.flops
    return LoggedSearch(path, "ansor", total, tuple(lines), tuple(trials), flops)


def _logged_workload(path: Path, keys: Iterable[str]) -> Workload | None:
    """Return the workload that operators recognize in a log's name and workload keys, if any."""
    parts = []
    for key in keys:
        with suppress(FormError):  # some keys are hashes
            parts.append(decode(key, list[Any]))
    workloads: dict[str, Workload] = {}
    for operator in OPERATORS.values():
        names = [operator.from_log_name(path.name)]
        for workload in [*names, *(operator.from_log_key(some) for some in parts if some)]:
            if workload is not None:
                workloads[workload.signature] = workload
    if len(workloads) > 1:
        raise InputError(
            f"The name of {path} and its workload key give different sizes "
            f"({' and '.join(sorted(workloads))}): give the right ones with --shape."
        )
    return next(iter(workloads.values()), None)


def _database_search(path: Path, shape: Workload | None) -> LoggedSearch:
    """Read a database of MetaSchedule."""
    database = load_database(path)
    _require_one(database.path, len({record.workload_index for record in database.records}))
    ran, flops = database.valid, None
    if ran:
        shapes = [tensor_argument(argument)[1] for argument in json.loads(ran[0].text)[3]]
        known = (operator.flops_for_shapes(shapes) for operator in OPERATORS.values())
        flops = next((number for number in known if number is not None), None)
    if shape is not None:
        if flops not in (None, shape.flops):
            raise InputError(
                f"The tensors of {database.path} are not those of --shape: a launch takes {flops} "
                f"FLOPs instead of {shape.flops}. Omit --shape."
            )
        flops = shape.flops
    return LoggedSearch(
        database.path,
        "metaschedule",
        len(database.records),
        tuple(record.line for record in ran),
        tuple(Contender(record.time_ms, (record.trace_text,)) for record in ran),
        flops,
    )


def _require_one(path: Path, workloads: int) -> None:
    if workloads > 1:
        raise InputError(
            f"{path} contains trials of {workloads} workloads, whose times cannot be compared: "
            "split it into one file per workload."
        )


def _gflops(search: LoggedSearch, time_ms: float) -> float | None:
    if search.flops is None:
        return None
    try:
        gflops = search.flops / time_ms / 1e6
    except OverflowError:
        gflops = math.inf
    if math.isinf(gflops):
        raise InputError(
            f"{search.path} has a trial of {time_ms:g} ms, too short a time for its FLOPs: name "
            "another log."
        )
    return gflops


class _AnyAnsorLine(Struct):
    """The members of every line."""

    i: Any
    r: Any


class _AnsorLine(Struct):
    """The members with their contents: the task, its workload key first, the state, and results."""

    i: tuple[list[Any], list[Any]]
    r: tuple[list[AboveZero], int, Any, Any]


def _data_lines(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that TVM reads, with their numbers from 1: no comments or empty lines."""
    for line, text in enumerate(io.BytesIO(content), start=1):
        if text.strip() and text[:1] not in (b"#", b" "):
            yield line, text


def refuse_ansor(path: Path) -> None:
    """Refuse a log of the auto-scheduler.

    Raises:
        InputError: ``path`` is one; its kernels cannot be rebuilt.
    """
    try:
        content = read_bytes(path, "log", _MAX_ANSOR_BYTES)
        decode(next(_data_lines(content), (0, b""))[1], _AnyAnsorLine)
    except (InputError, FormError):
        return
    raise InputError(
        f"{path} is a log of TVM's auto-scheduler (Ansor), which TVM has dropped, so its kernels "
        "cannot be rebuilt: list its trials with 'gpuenergy kernels sample', or search again with "
        "'gpuenergy tune'."
    )


_PACKED = (".gz", ".xz")
_LOGS = (".json", ".jsonl", ".log")


def is_database(folder: Path) -> bool:
    """Return whether ``folder`` has a database of MetaSchedule in it."""
    return beside(folder / RECORD_FILE) is not None


def logs_in(folder: Path) -> list[Path]:
    """Return the logs in ``folder``, by name: files named like logs, and folders of databases.

    Raises:
        InputError: there are none, or the folder cannot be read.
    """
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise InputError(f"{folder} cannot be read: {error.strerror}.") from None
    paths = [
        path
        for path in entries
        if (is_folder(path) and is_database(path))
        or (is_file(path) and plain_name(path).endswith(_LOGS) and path.name[0] != ".")
    ]
    if not paths:
        raise InputError(
            f"There are no logs in {folder}: name a folder of files ending in "
            f"{', '.join(_LOGS)}, plain or compressed (.gz, .xz), or of MetaSchedule's databases."
        )
    return paths


def plain_name(path: Path) -> str:
    """Return the file's name without the ending of its compression."""
    return path.stem if path.name.endswith(_PACKED) else path.name


def write_filtered(
    log: Path, search: LoggedSearch, chosen: Sequence[Sampled], folder: Path
) -> Path:
    """Write the chosen lines of a log to ``folder``, unchanged and in the given order.

    A database goes to a folder of the same name as its own, with its file of workloads.

    Args:
        log: the log, as the user named it.
        search: the trials that were read from it.
        chosen: the chosen trials.
        folder: the folder to which the lines are written.

    Returns:
        The file of trials.

    Raises:
        InputError: a file cannot be written, or would replace the log.
    """
    place = folder / log.absolute().name if is_folder(log) else folder
    lines = read_unpacked(search.path, "log", _MAX_BYTES).split(b"\n")
    texts = [lines[pick.line - 1].rstrip(b"\r") for pick in chosen]
    target = place / plain_name(search.path)
    _write(target, b"".join(text + b"\n" for text in texts), search.path)
    named = workload_path(search.path)
    workloads = None if named is None else beside(named)
    if workloads is not None:
        content = read_unpacked(workloads, "database", _MAX_BYTES)
        _write(place / plain_name(workloads), content, workloads)
    return target


def _write(target: Path, content: bytes, source: Path) -> None:
    if os.path.realpath(target) == os.path.realpath(source):
        raise InputError(f"{target} is the log itself: choose another folder for --filtered.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, content)
    except OSError as error:
        raise InputError(f"{target} cannot be written: {error.strerror}.") from None
