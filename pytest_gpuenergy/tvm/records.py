"""Record files: the tuned kernels of one workload, as scheduling records. Data, never code.

A file is one JSON document: for which GPU and with which TVM it was tuned, the workload, and
up to 25 MetaSchedule records with their rank, the band of the search they come from and, once
measured, time, power and energy. Nothing here needs TVM.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from pytest_gpuenergy.kernels.kernel import RecordedFigures
from pytest_gpuenergy.record.metrics import METRICS, Metric
from pytest_gpuenergy.support.errors import InputError
from pytest_gpuenergy.support.files import write_atomically
from pytest_gpuenergy.support.json_input import (
    FormError,
    member,
    parse,
    positive,
    read_bytes,
    shown,
    typed,
)
from pytest_gpuenergy.tvm.ansor import refuse_ansor
from pytest_gpuenergy.tvm.record_form import check_record, is_failed, tensor_of
from pytest_gpuenergy.tvm.target_form import check_target
from pytest_gpuenergy.workloads.registry import KINDS, from_parameters, to_parameters
from pytest_gpuenergy.workloads.workload import Workload, is_plain_name

FORMAT = "gpuenergy-records"
FORMAT_VERSION = 1
MOST_RECORDS = 25

Band = Literal["fastest", "best", "p10", "p25", "p50", "p75"]
BANDS: tuple[Band, ...] = ("fastest", "p10", "p25", "p50", "p75")
"""Where the objective is time; otherwise ``best`` takes the place of ``fastest``."""

PERFORMANCE_FOLDER = "performance"
"""Beside record files: the rates of their kernels, under the same names."""

_WHAT = "record file"
_LARGEST_BYTES = 16 << 20


@dataclass(frozen=True)
class Measured:
    """What one launch took on the GPU the file was tuned for, at that power limit."""

    time_ms: float
    power_w: float
    energy_mj: float
    power_limit_w: float


@dataclass(frozen=True)
class Record:
    """One tuned kernel.

    Attributes:
        rank: its place in the file, 1 = the best by the file's objective.
        band: the part of the search it represents: the fastest trials (the best ones, where the
            objective is not time), or those nearest to a percentile of time.
        text: the MetaSchedule record ``[trace, run_secs, target, args_info]`` as JSON text.
        measured: figures of its own measurement; None before that.
    """

    rank: int
    band: Band
    text: str
    measured: Measured | None = None

    @cached_property
    def content(self) -> list[Any]:
        """The MetaSchedule record, parsed."""
        content: list[Any] = json.loads(self.text)
        return content

    @property
    def run_secs(self) -> tuple[float, ...]:
        """The times of the search's own measurement, in seconds."""
        return tuple(self.content[1])


@dataclass(frozen=True)
class RecordFile:
    """The record file of one workload.

    Attributes:
        workload: what the kernels compute.
        gpu: name of the GPU they were tuned for, as NVML gives it.
        driver: its driver's version.
        tvm: version of TVM that wrote the records.
        target: TVM's target, as JSON text.
        date: day of the search, ``2026-11-21``.
        trials_total: candidates the search tried; ``trials_valid`` of them ran.
        records: sorted by rank, 1, 2, ...
        objective: what the search made small: ``time``, ``energy`` or ``edp``.
    """

    workload: Workload
    gpu: str
    driver: str
    tvm: str
    target: str
    date: str
    trials_total: int
    trials_valid: int
    records: tuple[Record, ...]
    objective: Metric = Metric.TIME

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks there are, ascending."""
        return tuple(record.rank for record in self.records)

    def record(self, rank: int) -> Record:
        """The record of that rank.

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

    def recorded(self, rank: int) -> tuple[RecordedFigures, ...]:
        """The measured figures of that rank, for `Kernel.recorded`; empty without any."""
        measured = self.record(rank).measured
        if measured is None:
            return ()
        return (
            RecordedFigures(
                gpu=self.gpu,
                power_limit_w=measured.power_limit_w,
                time_ms=measured.time_ms,
                power_w=measured.power_w,
                energy_mj=measured.energy_mj,
            ),
        )

    def with_measured(self, measured: Mapping[int, Measured | None]) -> RecordFile:
        """The same file with the figures of the given ranks replaced.

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


def file_name(workload: Workload) -> str:
    """The name of a workload's record file.

    Raises:
        InputError: the workload's name cannot be part of a file name.
    """
    if not is_plain_name(workload.name):
        raise InputError(
            f"A workload called {workload.name!r} cannot have a record file: use letters, digits, "
            "'_', '-' and '.' in its name."
        )
    return workload.name + _ending(workload)


def _ending(workload: Workload) -> str:
    return f"_{workload.signature}.json"


def record_paths(folder: Path) -> list[Path]:
    """The record files in ``folder``, or else those in the folders in it, one for each GPU."""
    own, below = (
        sorted({path for kind in KINDS for path in folder.glob(pattern.format(kind))})
        for pattern in ("*_{}_*.json", "*/*_{}_*.json")
    )
    own, below = ([path for path in paths if path.is_file()] for paths in (own, below))
    return own or [path for path in below if path.parent.name != PERFORMANCE_FOLDER]


def find_records(folder: Path, workload: Workload) -> Path:
    """The record file of ``workload`` in ``folder``, or of another workload of the same shape.

    The workload's own comes first, then the first one by name. See `record_paths`.

    Raises:
        InputError: there is none, or there are several, for different GPUs.
    """
    name = file_name(workload)
    found = [path for path in record_paths(folder) if path.name.endswith(_ending(workload))]
    found = [path for path in found if path.name == name] or found
    if not found:
        raise InputError(
            f"There are no records of {workload.name} in {folder} (no file {name}): "
            f"make them with 'gpuenergy tune --case {workload.name} --out {folder}'."
        )
    if len(folders := sorted({path.parent.name for path in found})) > 1:
        raise InputError(
            f"There are several sets of records of {workload.name} in {folder} "
            f"({', '.join(folders)}): name one of these folders."
        )
    return found[0]


def records_of(folder: Path, workload: Workload) -> RecordFile:
    """The records in ``folder`` that serve ``workload``, under its name; see `find_records`.

    Raises:
        InputError: there are none, or the file cannot be used or holds those of another shape.
    """
    path = find_records(folder, workload)
    file = load_records(path)
    if file.workload.signature != workload.signature:
        raise InputError(
            f"The {_WHAT} {path} holds kernels of {file.workload.name} instead of "
            f"{workload.name}: restore it from where it came."
        )
    return replace(file, workload=workload)


def load_records(path: Path) -> RecordFile:
    """Read a record file; nothing in it is executed.

    Raises:
        InputError: the file is missing, damaged, of another format or inconsistent.
    """
    content = read_bytes(path, _WHAT, _LARGEST_BYTES)
    refuse_ansor(path, content)  # logs have had the names of record files
    try:
        return _record_file(parse(content))
    except (FormError, InputError) as error:
        raise InputError(
            f"The {_WHAT} {path} cannot be used, because {str(error).rstrip('.')}: restore it from "
            "where it came, or write it again with 'gpuenergy tune'."
        ) from None


def dump_records(file: RecordFile, path: Path) -> None:
    """Write a record file, whole or not at all.

    Raises:
        InputError: the file is inconsistent or cannot be written.
    """
    header: dict[str, Any] = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "gpu": file.gpu,
        "driver": file.driver,
        "tvm": file.tvm,
        "date": file.date,
        "trials": {"total": file.trials_total, "valid": file.trials_valid},
        "workload": to_parameters(file.workload),
        "target": json.loads(file.target),
    }
    if file.objective != "time":
        header["objective"] = file.objective
    # One line per record: they are long, and a change of one should show as one line.
    lines = ",\n".join(f"    {_entry_text(record)}" for record in file.records)
    head = json.dumps(header, indent=2).removesuffix("\n}")
    text = f'{head},\n  "records": [\n{lines}\n  ]\n}}\n'
    try:
        _record_file(parse(text))
    except FormError as error:
        raise InputError(
            f"The records of {file.workload.name} are inconsistent: {error}."
        ) from None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except OSError as error:
        raise InputError(f"The {_WHAT} {path} cannot be written: {error.strerror}.") from None


def _entry_text(record: Record) -> str:
    head = json.dumps({"rank": record.rank, "band": record.band})[:-1]
    measured = json.dumps(None if record.measured is None else asdict(record.measured))
    return f'{head}, "measured": {measured}, "record": {record.text}}}'


def _record_file(value: object) -> RecordFile:
    top = typed(value, dict, "the document")
    if top.get("format") != FORMAT:
        raise FormError(f"its format is {shown(top.get('format'))} instead of {FORMAT!r}")
    if top.get("version") != FORMAT_VERSION:
        raise FormError(
            f"its version is {shown(top.get('version'))}, and this gpuenergy reads {FORMAT_VERSION}"
        )
    trials = member(top, "trials", dict)
    total, valid = member(trials, "total", int), member(trials, "valid", int)
    entries = member(top, "records", list)
    if not 0 <= valid <= total or valid < len(entries):
        raise FormError(f"it has {len(entries)} records of {valid} valid trials of {total}")
    if not 1 <= len(entries) <= MOST_RECORDS:
        raise FormError(f"it has {len(entries)} records instead of 1 to {MOST_RECORDS}")
    workload = from_parameters(member(top, "workload", dict))
    records = []
    for number, entry in enumerate(entries, start=1):
        try:
            records.append(_record(entry, number, workload))
        except FormError as error:
            raise FormError(f"in entry {number} {error}") from None
    return RecordFile(
        workload=workload,
        gpu=_line(top, "gpu"),
        driver=_line(top, "driver"),
        tvm=_line(top, "tvm"),
        target=_target(member(top, "target", dict)),
        date=_line(top, "date"),
        trials_total=total,
        trials_valid=valid,
        records=tuple(records),
        objective=_objective(top.get("objective", "time")),
    )


def _line(top: dict[str, Any], key: str) -> str:
    """A text that a terminal can be given, which neither ends a line nor commands it."""
    text = member(top, key, str)
    if not text.isprintable():
        raise FormError(f"{key!r} is {shown(text)}, which holds characters that cannot be printed")
    return text


def _target(value: dict[str, Any]) -> str:
    check_target(value)
    return _compact(value)


def _objective(value: object) -> Metric:
    for objective in METRICS:
        if value == objective:
            return objective
    raise FormError(f"the objective is {shown(value)} instead of one of {', '.join(METRICS)}")


def _record(value: object, rank: int, workload: Workload) -> Record:
    entry = typed(value, dict, "the entry")
    if member(entry, "rank", int) != rank:
        raise FormError(f"the rank is {shown(entry['rank'])} instead of {rank}")
    band: Any = member(entry, "band", str)
    if band not in get_args(Band):
        raise FormError(f"the band is {shown(band)} instead of one of {', '.join(get_args(Band))}")
    content = check_record(member(entry, "record", list))
    if is_failed(content[1]):
        raise FormError("the record is of a failed trial")
    shapes = [tensor_of(argument) for argument in content[3]]
    if shapes != [(tensor.dtype, tensor.shape) for tensor in workload.tensors]:
        raise FormError(f"the record is of tensors other than those of {workload.name}")
    return Record(rank, band, _compact(content), _measured(entry.get("measured")))


def _measured(value: object) -> Measured | None:
    if value is None:
        return None
    figures = typed(value, dict, "'measured'")
    names = [field.name for field in fields(Measured)]
    if set(figures) != set(names):
        raise FormError(f"'measured' has {shown(sorted(figures))} instead of {', '.join(names)}")
    return Measured(**{name: positive(figures[name], repr(name)) for name in names})


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
