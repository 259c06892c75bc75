"""MetaSchedule's JSON databases, as a search writes them, and its records as recipes of the tuner.

They are data, never code. This needs no TVM.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypeVar

from msgspec import Meta

from pytest_gpuenergy.support import (
    FormError,
    InputError,
    decode,
    is_file,
    is_folder,
    member,
    read_unpacked,
    shown,
    typed,
)
from pytest_gpuenergy.tuners.tvm.record_form import (
    check_form,
    check_record,
    check_target,
    compact,
    is_failed,
    tensor_argument,
)
from pytest_gpuenergy.tuning import IDENTITY_FILE, TRIALS_FILE, read_trials
from pytest_gpuenergy.workloads import Workload

WORKLOAD_FILE = "database_workload.json"
RECORD_FILE = "database_tuning_record.json"

_MAX_BYTES = 1 << 30
_LONGEST_LINE_BYTES = 4 << 20
"""The longest line that is read; the lines of a convolution's search have 52,000 bytes at most."""
_SUFFIXES = ("", ".gz", ".xz")
_T = TypeVar("_T")
_Index = Annotated[int, Meta(ge=0)]


@dataclass(frozen=True)
class DatabaseRecord:
    """One trial of a search.

    Attributes:
        line: its line in the file, from 1.
        workload_index: the number of its workload in the database, from 0.
        text: the MetaSchedule record ``[trace, run_secs, target, args_info]`` as JSON text.
        run_secs: the measured times in seconds.
        refuted: whether the search that wrote it knows that it failed, regardless of its times.
    """

    line: int
    workload_index: int
    text: str
    run_secs: tuple[float, ...]
    refuted: bool = False

    @property
    def failed(self) -> bool:
        """Whether the trial failed; MetaSchedule then writes a run time of 1e10 s."""
        return self.refuted or is_failed(self.run_secs)

    @property
    def time_ms(self) -> float:
        """The mean of the measured times in ms, by which MetaSchedule ranks trials."""
        return 1e3 * sum(self.run_secs) / len(self.run_secs)

    @cached_property
    def trace_text(self) -> str:
        """The trace alone, as JSON text, which is the same for equal schedules."""
        return compact(json.loads(self.text)[0])


@dataclass(frozen=True)
class Database:
    """The trials of a search, and the stored form of their workloads.

    Attributes:
        path: the file of the records.
        workloads: the entries of ``database_workload.json`` as JSON text; empty without that file.
        records: the trials.
    """

    path: Path
    workloads: tuple[str, ...]
    records: tuple[DatabaseRecord, ...]

    @property
    def valid(self) -> tuple[DatabaseRecord, ...]:
        """The trials that did not fail."""
        return tuple(record for record in self.records if not record.failed)


def load_database(path: Path) -> Database:
    """Read a MetaSchedule JSON database.

    If ``gpuenergy tune`` wrote it, ``trials.jsonl`` beside it is read too. That file says what
    became known of a trial after it was timed, for example that its kernel is wrong.

    Args:
        path: its folder, or its file of tuning records; the file of workloads is expected in the
            same folder. Files may be compressed (``.gz``, ``.xz``).

    Raises:
        InputError: a file is missing, damaged, or something else.
    """
    if is_folder(path):
        records_path = beside(path / RECORD_FILE)
        if records_path is None:
            raise InputError(
                f"There is no {RECORD_FILE} in {path}: name a folder that a search has written."
            )
        path = records_path
    named = workload_path(path)
    stored = None if named is None else beside(named)
    workloads: tuple[str, ...] = ()
    if stored is not None:
        workloads = tuple(
            _lines(stored, lambda _, text: compact(decode(text, tuple[str, str], "the line")))
        )
    refuted: set[int] = set()
    trials_path = beside(path.with_name(TRIALS_FILE))
    if trials_path is not None and beside(path.with_name(IDENTITY_FILE)) is not None:
        refuted = {trial.index for trial in read_trials(trials_path) if not trial.good}

    def read_record(line: int, text: bytes) -> DatabaseRecord:
        index, record = decode(text, tuple[_Index, list[Any]], "the line")
        if workloads and index >= len(workloads):
            raise FormError(f"it is of workload {shown(index)}, and there are {len(workloads)}")
        content = check_form(record)
        return DatabaseRecord(line, index, compact(content), tuple(map(float, content[1])))

    records = (
        replace(record, refuted=i in refuted) for i, record in enumerate(_lines(path, read_record))
    )
    return Database(path, workloads, tuple(records))


def workload_path(path: Path) -> Path | None:
    """Return the path of the workloads of a file of records, by MetaSchedule's names."""
    name = path.name.removesuffix(".gz").removesuffix(".xz")
    if "tuning_record" not in name:
        return None
    return path.with_name(name.replace("tuning_record", "workload"))


def beside(path: Path) -> Path | None:
    """Return ``path`` or its compressed form, whichever exists; None if neither does."""
    candidates = [path.with_name(path.name + suffix) for suffix in _SUFFIXES]
    return next((candidate for candidate in candidates if is_file(candidate)), None)


def _lines(path: Path, read: Callable[[int, bytes], _T]) -> Iterator[_T]:
    """Yield the results of ``read`` for each line's number and text."""
    content = read_unpacked(path, "database", _MAX_BYTES)
    for line, text in enumerate(io.BytesIO(content), start=1):
        if not text.strip():
            continue
        try:
            if len(text) > _LONGEST_LINE_BYTES:
                raise FormError(f"it is longer than {_LONGEST_LINE_BYTES >> 20} MiB")
            yield read(line, text)
        except FormError as error:
            raise InputError(
                f"Line {line} of the database {path} cannot be used, because {error}: remove the "
                "line if a search was interrupted there, otherwise name a database written by "
                "MetaSchedule."
            ) from None


_WRITTEN_FAILED_S = 1e10
"""The run time that MetaSchedule writes for a failed trial."""


@dataclass(frozen=True)
class MetaScheduleForm:
    """A `RecipeForm` whose recipes are MetaSchedule records."""

    tuner: str = "tvm-metaschedule"
    file_name: str = RECORD_FILE
    variant: str = ""

    def identity(self, recipe: str) -> str:
        """Return the trace: schedules with the same trace are the same."""
        return compact(json.loads(recipe)[0])

    def with_time(self, recipe: str, time_ms: float | None) -> str:
        """Return the record with its run time, a very long one for a failed trial."""
        content = json.loads(recipe)
        content[1] = [_WRITTEN_FAILED_S if time_ms is None else time_ms / 1e3]
        return compact(content)

    def time_ms(self, recipe: str) -> float:
        """Return the mean of the record's run times, in ms."""
        run_secs = json.loads(recipe)[1]
        return float(1e3 * sum(run_secs) / len(run_secs))

    def line(self, recipe: str) -> str:
        """Return the line in MetaSchedule's database, whose only workload has the number 0."""
        return f"[0,{recipe}]"

    def read(self, path: Path) -> list[str]:
        """Return the records of a database."""
        return [record.text for record in load_database(path).records]

    def check_stored(self, recipe: str, *, ran: bool) -> None:
        """Check the whole record if the trial ran by its own entry or by the record's time."""
        content = json.loads(recipe)
        if ran or not is_failed(content[1]):
            check_record(content)

    def check(self, value: object, workload: Workload) -> str:
        """Return the record of a trial that ran, if it is of the workload's tensors."""
        content = check_record(value)
        if is_failed(content[1]):
            raise FormError("the record is of a failed trial")
        shapes = [tensor_argument(argument) for argument in content[3]]
        if shapes != [(tensor.dtype, tensor.shape) for tensor in workload.tensors]:
            raise FormError(f"the record is of tensors other than those of {workload.name}")
        return compact(content)

    def check_toolchain(self, header: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return TVM's version and its target."""
        top = typed(header, dict, "the document")
        target = member(top, "target", dict)
        check_target(target)
        return {"tvm": member(top, "tvm", str), "target": target}


METASCHEDULE: MetaScheduleForm = MetaScheduleForm()
