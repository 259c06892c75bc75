"""Record files: the tuned kernels of one workload, as recipes. They are data, never code.

A file is one JSON document. It has the GPU, the tuner and its toolchain, the workload, and up to 25
recipes. A recipe has its rank, the band of the search that it represents and, once measured, its
time, power and energy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

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
from pytest_gpuenergy.workloads import Workload, from_parameters, is_plain_name, to_parameters

if TYPE_CHECKING:
    from pytest_gpuenergy.tuning.search_space import RecipeForm

FORMAT = "gpuenergy-records"
FORMAT_VERSION = 1
MAX_RECORDS = 25
WHAT = "record file"
"""The name of these files in messages."""

Band = Literal["fastest", "best", "p10", "p25", "p50", "p75"]
BANDS: tuple[Band, ...] = ("fastest", "p10", "p25", "p50", "p75")
"""The bands for the objective time; for others ``best`` takes the place of ``fastest``."""

PERFORMANCE_FOLDER = "performance"
"""A folder beside record files that contains the rates of their kernels under the same names."""

_MAX_BYTES = 16 << 20


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
        tuner: the name of the tuner that wrote their recipes, see `RecipeForm`.
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
    tuner: str
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
        origin = Origin(self.tuner, rank, {**kernel.origin.details, **details})
        return replace(kernel, origin=origin, recorded=self.recorded(rank))

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


def read_records(path: Path, forms: Mapping[str, RecipeForm] | None = None) -> RecordFile:
    """Read a record file.

    Args:
        path: its path.
        forms: the form of the recipes of each tuner. With None, the tuner may be any, and neither
            recipes nor toolchain are checked: the toolchain has all members of the header that are
            not attributes of `RecordFile`.

    Raises:
        InputError: the file is missing, damaged, of another format or inconsistent.
    """
    content = read_bytes(path, WHAT, _MAX_BYTES)
    try:
        file = _record_file(decode(content, Any, "the document"), forms)
    except (FormError, InputError) as error:
        reason = str(error).rstrip(".")
        raise InputError(
            f"The {WHAT} {path} cannot be used, because {reason[:1].lower()}{reason[1:]}: restore "
            "the original file, or write it again with 'gpuenergy tune'."
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
        "tuner": file.tuner,
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
        _record_file(decode(text, Any, "the document"))
    except FormError as error:
        raise InputError(
            f"The records of {file.workload.name} are inconsistent: {error}."
        ) from None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except OSError as error:
        raise InputError(f"The {WHAT} {path} cannot be written: {error.strerror}.") from None


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


class _Document(Struct):
    gpu: str
    driver: str
    date: str
    trials: _Counts
    workload: dict[str, Any]
    records: list[_Entry]
    objective: Metric = Metric.TIME
    tuner: str = "tvm-metaschedule"  # older files do not name their tuner


def _record_file(value: object, forms: Mapping[str, RecipeForm] | None = None) -> RecordFile:
    header = convert(value, dict[str, Any], "the document")
    if header.get("format") != FORMAT:
        raise FormError(f"its format is {shown(header.get('format'))} instead of {FORMAT!r}")
    if header.get("version") != FORMAT_VERSION:
        raise FormError(
            f"its version is {shown(header.get('version'))}, but this gpuenergy reads "
            f"{FORMAT_VERSION}"
        )
    top = convert(value, _Document, "the document")
    counts, entries = top.trials, top.records
    if not 0 <= counts.valid <= counts.total or counts.valid < len(entries):
        raise FormError(
            f"it has {len(entries)} records, but {counts.valid} of {counts.total} trials were valid"
        )
    if not 1 <= len(entries) <= MAX_RECORDS:
        raise FormError(f"it has {len(entries)} records instead of 1 to {MAX_RECORDS}")
    for key, text in header.items():
        if isinstance(text, str) and not text.isprintable():  # it may be printed on a terminal
            raise FormError(f"{key!r} is {shown(text)}, which contains unprintable characters")
    for place, entry in enumerate(entries):
        if entry.rank != place + 1:
            raise FormError(f"records[{place}].rank is {entry.rank} instead of {place + 1}")
    own = {"format", "version", *_Document.__struct_fields__}
    workload = from_parameters(top.workload)
    toolchain: Mapping[str, Any] = {key: part for key, part in header.items() if key not in own}
    form = None
    if forms is not None:
        if (form := forms.get(top.tuner)) is None:
            raise FormError(f"its tuner is {shown(top.tuner)} instead of {' or '.join(forms)}")
        toolchain = form.check_toolchain(toolchain)
    records = []
    for place, entry in enumerate(entries):
        try:
            if form is None:
                recipe = json.dumps(entry.record, separators=(",", ":"))
            else:
                recipe = form.check(entry.record, workload)
        except FormError as error:
            raise FormError(f"in records[{place}] {error}") from None
        records.append(Record(entry.rank, entry.band, recipe, entry.measured))
    return RecordFile(
        workload=workload,
        tuner=top.tuner,
        gpu=top.gpu,
        driver=top.driver,
        toolchain=toolchain,
        date=top.date,
        trials_total=counts.total,
        trials_valid=counts.valid,
        records=tuple(records),
        objective=top.objective,
    )
