"""Record files: the tuned kernels of one workload, as recipes. They are data, never code.

A file is one JSON document. It has the GPU, the tuner and its toolchain, the workload, and up to 25
recipes. A recipe has its rank, the band of the search that it represents and, once measured, its
time, power and energy.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from pytest_gpuenergy.kernels import Kernel, Origin, RecordedFigures
from pytest_gpuenergy.record import AboveZero, Metric
from pytest_gpuenergy.support import (
    FormError,
    InputError,
    convert,
    decode,
    read_bytes,
    shown,
    write_atomically,
)
from pytest_gpuenergy.tuning.search_space import RecipeForm
from pytest_gpuenergy.workloads import Workload, from_parameters, is_plain_name, to_parameters

FORMAT = "gpuenergy-records"
FORMAT_VERSION = 1
MOST_RECORDS = 25
WHAT = "record file"
"""The name of these files in messages."""

Band = Literal["fastest", "best", "p10", "p25", "p50", "p75"]
BANDS: tuple[Band, ...] = ("fastest", "p10", "p25", "p50", "p75")
"""The bands for the objective time; for others ``best`` takes the place of ``fastest``."""

PERFORMANCE_FOLDER = "performance"
"""A folder beside record files that contains the rates of their kernels under the same names."""

_LARGEST_BYTES = 16 << 20


@dataclass(frozen=True)
class Measured:
    """The figures of one launch on the GPU that the file was tuned for, under that power limit."""

    time_ms: AboveZero
    power_w: AboveZero
    energy_mj: AboveZero
    power_limit_w: AboveZero


@dataclass(frozen=True)
class Record:
    """One tuned kernel.

    Attributes:
        rank: its place in the file; 1 is the best by the file's objective.
        band: the part of the search that it represents: the fastest trials (the best ones, if the
            objective is not time), or those nearest to a percentile of time.
        recipe: the JSON text from which the kernel is made again.
        measured: the figures of its measurement; None if it has not been measured.
    """

    rank: int
    band: Band
    recipe: str
    measured: Measured | None = None


@dataclass(frozen=True)
class RecordFile:
    """The record file of one workload.

    Attributes:
        workload: the workload that the kernels compute.
        form: the form of their recipes.
        gpu: the name of the GPU that they were tuned for, as in NVML.
        driver: the version of its driver.
        toolchain: the toolchain and its target, such as TVM's version and TVM's target.
        date: the day of the search, such as ``2026-11-21``.
        trials_total: the number of trials of the search; ``trials_valid`` of them ran.
        records: the records by rank, 1, 2, ...
        objective: the figure that the search minimized.
        folder: the folder that contains the file; None if it was not read from one.
    """

    workload: Workload
    form: RecipeForm
    gpu: str
    driver: str
    toolchain: Mapping[str, Any] = field(hash=False)
    date: str
    trials_total: int
    trials_valid: int
    records: tuple[Record, ...]
    objective: Metric = Metric.TIME
    folder: Path | None = field(default=None, compare=False)

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks, ascending."""
        return tuple(record.rank for record in self.records)

    def record(self, rank: int) -> Record:
        """Return the record of a rank.

        Raises:
            InputError: there is none.
        """
        for record in self.records:
            if record.rank == rank:
                return record
        raise InputError(
            f"{self.workload.name} has no kernel of rank {rank!r}: "
            f"its record file has ranks 1 to {len(self.records)}."
        )

    def named(self, kernel: Kernel, rank: int) -> Kernel:
        """Return the kernel of a rank with its origin and its figures."""
        made = {name: text for name, text in self.toolchain.items() if isinstance(text, str)}
        search = {"band": self.record(rank).band, "trials": self.trials_total, "gpu": self.gpu}
        details = {**search, **made, "date": self.date}
        origin = Origin(self.form.tuner, rank, {**kernel.origin.details, **details})
        return replace(kernel, origin=origin, recorded=self.recorded(rank))

    def search_ms(self, rank: int) -> float:
        """Return the time of a launch in a rank's trial, in ms.

        A trial is shorter than a measurement.
        """
        return self.form.time_ms(self.record(rank).recipe)

    def recorded(self, rank: int) -> tuple[RecordedFigures, ...]:
        """Return the measured figures of a rank, for `Kernel.recorded`; empty if there are none."""
        measured = self.record(rank).measured
        return () if measured is None else (RecordedFigures(gpu=self.gpu, **asdict(measured)),)

    def with_measured(self, measured: Mapping[int, Measured | None]) -> RecordFile:
        """Return a copy with the figures of the given ranks replaced.

        Raises:
            InputError: a rank is not in the file.
        """
        for rank in measured:
            self.record(rank)
        records = tuple(
            replace(record, measured=measured.get(record.rank, record.measured))
            for record in self.records
        )
        return replace(self, records=records)


def file_name(workload: Workload, variant: str = "") -> str:
    """Return the name of a workload's record file.

    Args:
        workload: the workload that the kernels compute.
        variant: the variant of the form of their recipes.

    Raises:
        InputError: the workload's name cannot be part of a file name.
    """
    if not is_plain_name(workload.name):
        raise InputError(
            f"A workload called {workload.name!r} cannot have a record file: use letters, digits, "
            "'_', '-' and '.' in its name."
        )
    return f"{workload.name}{ending_of(workload, variant)}"


def ending_of(workload: Workload, variant: str = "") -> str:
    """Return the ending of the names of record files for this shape."""
    return f"_{workload.signature}{'.' if variant else ''}{variant}.json"


def load_records(path: Path, forms: Iterable[RecipeForm]) -> RecordFile:
    """Read a record file; nothing in it is executed.

    Args:
        path: the file.
        forms: the forms of recipes to accept.

    Raises:
        InputError: the file is missing, damaged, of another format or inconsistent.
    """
    content = read_bytes(path, WHAT, _LARGEST_BYTES)
    try:
        file = _record_file(decode(content, Any, "the document"), forms)
    except (FormError, InputError) as error:
        raise InputError(
            f"The {WHAT} {path} cannot be used, because {_clause(error)}: restore the original "
            "file, or write it again with 'gpuenergy tune'."
        ) from None
    return replace(file, folder=path.parent)


def dump_records(file: RecordFile, path: Path) -> None:
    """Write a record file, completely or not at all.

    Raises:
        InputError: the file is inconsistent or cannot be written.
    """
    header: dict[str, Any] = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "tuner": file.form.tuner,
        "gpu": file.gpu,
        "driver": file.driver,
        "date": file.date,
        "trials": {"total": file.trials_total, "valid": file.trials_valid},
        "workload": to_parameters(file.workload),
        **file.toolchain,
    }
    if file.objective != Metric.TIME:
        header["objective"] = file.objective
    # One line per record: they are long, and a change to one should appear as one line.
    lines = ",\n".join(f"    {_entry_text(record)}" for record in file.records)
    head = json.dumps(header, indent=2).removesuffix("\n}")
    text = f'{head},\n  "records": [\n{lines}\n  ]\n}}\n'
    try:
        _record_file(decode(text, Any, "the document"), [file.form])
    except FormError as error:
        raise InputError(
            f"The records of {file.workload.name} are inconsistent: {error}."
        ) from None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except OSError as error:
        raise InputError(f"The {WHAT} {path} cannot be written: {error.strerror}.") from None


def _clause(error: Exception) -> str:
    """Return an error's sentence as a part of another sentence."""
    text = str(error).rstrip(".")
    return text[:1].lower() + text[1:]


def _entry_text(record: Record) -> str:
    head = json.dumps({"rank": record.rank, "band": record.band})[:-1]
    measured = json.dumps(None if record.measured is None else asdict(record.measured))
    return f'{head}, "measured": {measured}, "record": {record.recipe}}}'


class _Counts(Struct):
    total: int
    valid: int


class _Entry(Struct):
    rank: int
    band: Band
    record: Any
    measured: Measured | None = None


class _Head(Struct):
    format: Any = None
    version: Any = None
    tuner: str = "tvm-metaschedule"  # older files do not name their tuner


class _Document(Struct):
    gpu: str
    driver: str
    date: str
    trials: _Counts
    workload: dict[str, Any]
    records: list[_Entry]
    objective: Metric = Metric.TIME


def _record_file(value: object, forms: Iterable[RecipeForm]) -> RecordFile:
    head = convert(value, _Head, "the document")
    if head.format != FORMAT:
        raise FormError(f"its format is {shown(head.format)} instead of {FORMAT!r}")
    if head.version != FORMAT_VERSION:
        raise FormError(
            f"its version is {shown(head.version)}, but this gpuenergy reads {FORMAT_VERSION}"
        )
    form = _form_of(head.tuner, forms)
    top = convert(value, _Document, "the document")
    header = convert(value, dict[str, Any])
    counts, entries = top.trials, top.records
    if not 0 <= counts.valid <= counts.total or counts.valid < len(entries):
        raise FormError(
            f"it has {len(entries)} records, but {counts.valid} of {counts.total} trials were valid"
        )
    if not 1 <= len(entries) <= MOST_RECORDS:
        raise FormError(f"it has {len(entries)} records instead of 1 to {MOST_RECORDS}")
    workload = from_parameters(top.workload)
    toolchain = form.check_toolchain(header)
    texts = {key: value for key, value in header.items() if isinstance(value, str)}
    for key, text in texts.items():
        _check_line(key, text)
    return RecordFile(
        workload=workload,
        form=form,
        gpu=top.gpu,
        driver=top.driver,
        toolchain=toolchain,
        date=top.date,
        trials_total=counts.total,
        trials_valid=counts.valid,
        records=tuple(
            _record(entry, rank, workload, form) for rank, entry in enumerate(entries, start=1)
        ),
        objective=top.objective,
    )


def _form_of(tuner: str, forms: Iterable[RecipeForm]) -> RecipeForm:
    known = {form.tuner: form for form in forms}
    if tuner not in known:
        raise FormError(f"its tuner is {shown(tuner)} instead of {' or '.join(known)}")
    return known[tuner]


def _check_line(key: str, text: str) -> None:
    """Accept text that is safe to print on a terminal: no line ends, no control characters."""
    if not text.isprintable():
        raise FormError(f"{key!r} is {shown(text)}, which contains unprintable characters")


def _record(entry: _Entry, rank: int, workload: Workload, form: RecipeForm) -> Record:
    place = f"records[{rank - 1}]"
    if entry.rank != rank:
        raise FormError(f"{place}.rank is {entry.rank} instead of {rank}")
    try:
        recipe = form.check(entry.record, workload)
    except FormError as error:
        raise FormError(f"in {place} {error}") from None
    return Record(rank, entry.band, recipe, entry.measured)
