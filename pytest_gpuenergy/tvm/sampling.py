"""Chooses the trials that represent a search, from a log of Ansor or MetaSchedule."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_gpuenergy.support import InputError, is_folder, read_unpacked
from pytest_gpuenergy.tuning import Band, Contender, representatives
from pytest_gpuenergy.tvm.ansor import AnsorTrial, data_lines, key_parts, load_ansor
from pytest_gpuenergy.tvm.database import Database, load_database
from pytest_gpuenergy.tvm.operators import OPERATORS
from pytest_gpuenergy.tvm.record_form import tensor_of
from pytest_gpuenergy.workloads import Workload

_LARGEST_BYTES = 1 << 30


@dataclass(frozen=True)
class Search:
    """The trials of one workload's search.

    Attributes:
        path: the log.
        tuner: ``ansor`` or ``metaschedule``.
        total: number of trials, including those that failed.
        lines: line numbers, from 1, of the trials that ran.
        trials: the trials that ran.
        flops: floating-point operations of one launch; None if unknown.
    """

    path: Path
    tuner: str
    total: int
    lines: tuple[int, ...]
    trials: tuple[Contender, ...]
    flops: int | None


@dataclass(frozen=True)
class Sampled:
    """A chosen trial: its line in the log, its band, time of a launch in ms, and GFLOP/s."""

    line: int
    band: Band
    time_ms: float
    gflops: float | None


def load_search(path: Path, shape: Workload | None = None) -> Search:
    """Read a log of Ansor or a database of MetaSchedule, plain or compressed.

    Args:
        path: the file, or the folder of a MetaSchedule database.
        shape: the workload, if the log does not contain its sizes.

    Raises:
        InputError: the file is damaged or something else, contains several workloads, contains no
            trial that ran, or is for another workload than ``shape``.
    """
    if _is_ansor(path):
        search = _from_ansor(path, load_ansor(path), shape)
    else:
        search = _from_database(load_database(path), shape)
    if not search.trials:
        raise InputError(
            f"None of the {search.total} trials of {path} ran, so none can be chosen: name another "
            "log."
        )
    return search


def sample(search: Search, keep: int) -> list[Sampled]:
    """Choose ``keep`` trials with `representatives`, the fastest first.

    Trials of equal schedules count once, so there may be fewer.

    Raises:
        InputError: a time is so short that the GFLOP/s are infinite.
    """
    return [
        Sampled(
            search.lines[pick.index],
            pick.band,
            search.trials[pick.index].time_ms,
            _gflops(search, search.trials[pick.index].time_ms),
        )
        for pick in representatives(search.trials, keep)
    ]


def _is_ansor(path: Path) -> bool:
    if is_folder(path):
        return False
    # A trial of Ansor is an object, one of MetaSchedule a list.
    content = read_unpacked(path, "log", _LARGEST_BYTES)
    return next(data_lines(content), (0, b""))[1].startswith(b"{")


def _from_ansor(path: Path, trials: Iterable[AnsorTrial], shape: Workload | None) -> Search:
    trials = tuple(trials)
    keys = {trial.workload_key for trial in trials}
    _require_one(path, len(keys))
    if shape is None:
        found = {workload.signature: workload for workload in _of_log(path, keys)}
        if len(found) > 1:
            labels = " and ".join(sorted(found))
            raise InputError(
                f"The name of {path} and its workload key give different sizes ({labels}): give "
                "the right ones with --shape."
            )
        shape = next(iter(found.values()), None)
    ran = [trial for trial in trials if not trial.failed]
    return Search(
        path=path,
        tuner="ansor",
        total=len(trials),
        lines=tuple(trial.line for trial in ran),
        trials=tuple(Contender(trial.time_ms, (trial.state,)) for trial in ran),
        flops=None if shape is None else shape.flops,
    )


def _from_database(database: Database, shape: Workload | None) -> Search:
    path = database.path
    _require_one(path, len({record.workload_index for record in database.records}))
    ran = database.valid
    flops = _flops_of(json.loads(ran[0].text)[3]) if ran else None
    if shape is not None:
        if flops not in (None, shape.flops):
            raise InputError(
                f"The tensors of {path} are not those of --shape: a launch takes {flops} FLOPs "
                f"instead of {shape.flops}. Omit --shape."
            )
        flops = shape.flops
    return Search(
        path=path,
        tuner="metaschedule",
        total=len(database.records),
        lines=tuple(record.line for record in ran),
        trials=tuple(Contender(record.time_ms, (record.trace_text,)) for record in ran),
        flops=flops,
    )


def _require_one(path: Path, workloads: int) -> None:
    if workloads > 1:
        raise InputError(
            f"{path} contains trials of {workloads} workloads, whose times cannot be compared: "
            "split it into one file per workload."
        )


def _of_log(path: Path, keys: Iterable[str]) -> list[Workload]:
    """The workloads that any operator recognizes in a log's file name and workload keys."""
    found = []
    for operator in OPERATORS.values():
        found.append(operator.from_log_name(path.name))
        found += [operator.from_log_key(parts) for key in keys if (parts := key_parts(key))]
    return [workload for workload in found if workload is not None]


def _flops_of(args_info: list[Any]) -> int | None:
    shapes = [tensor_of(argument)[1] for argument in args_info]
    known = (operator.flops_of(shapes) for operator in OPERATORS.values())
    return next((flops for flops in known if flops is not None), None)


def _gflops(search: Search, time_ms: float) -> float | None:
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
