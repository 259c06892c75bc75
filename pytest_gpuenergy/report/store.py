"""Runs on disk: written one measurement at a time, readable at any time, even after a crash."""

from __future__ import annotations

import contextlib
import math
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from pytest_gpuenergy.record import AnchorCheck, Measurement, RunInfo, StationInfo, check, check_ids
from pytest_gpuenergy.support import (
    FormError,
    GpuEnergyError,
    NotJsonError,
    ReportError,
    ReportInputError,
    decode,
    dump,
    encode,
    followed,
    is_folder,
    is_there,
    lock,
    matching,
    open_file,
    schema_version,
    shown,
    write_atomically,
)

SCHEMA_VERSION = 1
HOME = ".gpuenergy"
MAX_BYTES = 1 << 30
UNKNOWN_GPU = "unknown GPU"
_RUN, _LATEST = "run.json", "latest"
MEASUREMENT, CHECK, BOARD_CHECK, STATION = "measurement", "check", "board check", "station"
RECORD_TYPES: Mapping[str, type[Measurement | AnchorCheck | StationInfo]] = {
    MEASUREMENT: Measurement,
    CHECK: AnchorCheck,
    BOARD_CHECK: Measurement,
    STATION: StationInfo,
}
"""The kinds of records in a run folder: board checks are of the kernels that all boards measure."""
_FILES = {
    MEASUREMENT: "measurements.jsonl",
    CHECK: "anchors.jsonl",
    STATION: "stations.jsonl",
    BOARD_CHECK: "boards.jsonl",
}
_RAW = (_RUN, *_FILES.values())
_CHOICES = f"name a folder in {HOME}/runs, the id of one, or a JSON report"
IGNORE_SIGN = "# Made by pytest-gpuenergy"
"""First words of the ``.gitignore`` in the folder of runs."""
_WARNING = f"{IGNORE_SIGN}: nothing here belongs in version control.\n*\n"
_DRAFT = r"\.(gpuenergy-[0-9a-f]{16}|[\w.-]+\.\d+)\.tmp"
RUN_FILES = re.compile(
    r"(run|report)\.json|(measurements|anchors|stations|boards)\.jsonl|csv/([^/]+/)?EMULATED\.txt|"
    rf"csv/[^/]+/(all\.csv|powercap[^/]+/results\.csv|"
    rf"(powercap[^/]+/)?{_DRAFT})|{_DRAFT}"
)
"""The files that a run writes, by their path in its folder."""
_T = TypeVar("_T")
_Record = TypeVar("_Record", bound=Measurement | AnchorCheck | StationInfo)


class Report(Struct, frozen=True, tag_field="schema_version", tag=SCHEMA_VERSION):
    """A run's identity with its measurements; for merged runs, the identity of the last one.

    ``anchors`` are the checks of anchor kernels, in chronological order. ``stations`` are the GPUs
    that took part, in the order in which they joined (none in older records). ``board_checks`` are
    measurements of the kernels that every one of several boards measures (see `boards`).
    """

    run: RunInfo
    measurements: tuple[Measurement, ...]
    anchors: tuple[AnchorCheck, ...] = ()
    stations: tuple[StationInfo, ...] = ()
    board_checks: tuple[Measurement, ...] = ()


class _RunFile(Struct, frozen=True):
    run: RunInfo


class _Duration(Struct, frozen=True):
    node_id: str
    wall_s: float = 0.0


class RunFolder:
    """``.gpuenergy/runs/<run id>``: a run's identity, and one line per measurement or check."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, root: Path, run: RunInfo) -> RunFolder:
        """Create the folder of a new run under ``root/.gpuenergy``.

        Raises:
            ReportError: it cannot be written.
        """
        home = root / HOME
        folder = cls(home / "runs" / run.run_id)
        with write_errors(folder.path):
            followed(folder.path).mkdir(parents=True, exist_ok=True)
            ignore = home / ".gitignore"
            if not is_there(ignore):
                write_atomically(ignore, _WARNING)
            write_atomically(folder.path / _RUN, dump(_RunFile(run)))
            write_atomically(home / _LATEST, run.run_id + "\n")
        folder.append(run.station, STATION)
        return folder

    def restart(self, run: RunInfo, kept: Iterable[Measurement] = ()) -> None:
        """Turn the folder into one of ``run`` that contains only the measurements ``kept``.

        Raises:
            ReportError: it cannot be written.
        """
        with write_errors(self.path):
            followed(self.path).mkdir(parents=True, exist_ok=True)
            for kind in (MEASUREMENT, STATION, BOARD_CHECK):
                self.path_of(kind).unlink(missing_ok=True)
            if lines := b"".join(encode(record) + b"\n" for record in kept):
                write_atomically(self.path_of(MEASUREMENT), lines)
            write_atomically(self.path / _RUN, dump(_RunFile(run)))
        _append(self.path_of(STATION), run.station)

    @property
    def options(self) -> dict[str, str]:
        """Of the run; none if the folder is not a run's."""
        path = self.path / _RUN
        try:
            return _decode_file(path, read_text(path), _RunFile).run.options
        except ReportInputError:
            return {}

    def path_of(self, kind: str) -> Path:
        """Return the file with one line per record of a kind of `RECORD_TYPES`."""
        return self.path / _FILES[kind]

    def append(self, record: _Record, kind: str = MEASUREMENT) -> None:
        """Append one record of a kind of `RECORD_TYPES`; it is on disk when this returns.

        Raises:
            ReportError: it cannot be written; earlier records are unaffected.
        """
        _append(self.path_of(kind), record)

    def board_checks(self) -> tuple[Measurement, ...]:
        """Return the measurements of kernels that all boards measure, from all processes.

        Raises:
            ReportInputError: a line is damaged.
        """
        return tuple(_lines(self.path_of(BOARD_CHECK), Measurement))

    def load(self) -> Report:
        """Return everything measured so far; a line truncated by a crash is skipped.

        Raises:
            ReportInputError: the folder is not a run, or a line is damaged.
        """
        path = self.path / _RUN
        run = _decode_file(path, read_text(path), _RunFile).run
        measurements = latest_only(_lines(self.path_of(MEASUREMENT), Measurement))
        checks = tuple(_lines(self.path_of(CHECK), AnchorCheck))
        stations = joined(_lines(self.path_of(STATION), StationInfo))
        return Report(run, measurements, checks, stations, self.board_checks())


def durations_s(folder: RunFolder) -> dict[str, float]:
    """Return how long each item of a run took, by node id; of one measured twice, the last time.

    Nothing else is read, so that runs of any size can be asked; lines that are damaged are skipped.
    """
    found: dict[str, float] = {}
    with contextlib.suppress(OSError), folder.path_of(MEASUREMENT).open("rb") as lines:
        for line in lines:
            with contextlib.suppress(msgspec.DecodeError):
                one = msgspec.json.decode(line, type=_Duration)
                if 0 < one.wall_s < math.inf:
                    found[one.node_id] = one.wall_s
    return found


def is_run(folder: Path) -> bool:
    """Return whether ``folder`` is a run folder."""
    return is_there(folder / _RUN)


def is_raw(path: Path) -> bool:
    """Return whether ``path``, with links resolved, is a file of a run's measurements."""
    return path.name in _RAW and HOME in path.parts


def files_read(path: Path) -> list[Path]:
    """Return the files from which the report at ``path`` is read.

    ``path`` is a run folder or a JSON report; another folder has none.
    """
    if not is_folder(path):
        return [path]
    return [path / name for name in _RAW] if is_run(path) else []


def latest_run(root: Path) -> RunFolder | None:
    """Return the most recently started run under ``root``, if any."""
    with contextlib.suppress(OSError, GpuEnergyError):
        name = read_text(root / HOME / _LATEST).strip()
        folder = root / HOME / "runs" / Path(name).name
        if name and is_run(folder):
            return RunFolder(folder)
    # That run was removed, or its name was never written: ids sort by time.
    others = [*filter(is_run, matching(root / HOME / "runs", "*"))]
    return RunFolder(others[-1]) if others else None


def find_run(named: Path, root: Path) -> Path:
    """``named`` if it exists, otherwise the run with that id under ``root`` if there is one."""
    # Only the last part: an id is a plain name and cannot lead out of the folder of runs.
    own = root / HOME / "runs" / named.name
    return own if not is_there(named) and is_run(own) else named


def load_report(path: Path) -> Report:
    """Read a run folder, or a JSON report written from one.

    Raises:
        ReportInputError: it is neither, or it is damaged; the message says what is wrong.
    """
    if is_folder(path):
        if not is_run(path):
            raise ReportInputError(f"{path} is not a run, because it has no {_RUN}: {_CHOICES}.")
        return RunFolder(path).load()
    if not is_there(path):
        raise ReportInputError(f"{path} does not exist: {_CHOICES}.")
    text = read_text(path)
    try:
        version = schema_version(text)
    except NotJsonError as error:
        raise ReportInputError(f"{path}: {error}.") from None
    except FormError:
        version = None
    if version is None:
        raise ReportInputError(f"{path} is not a report of pytest-gpuenergy.")
    if version != SCHEMA_VERSION:
        raise ReportInputError(
            f"{path} has schema version {shown(version)}, but this release reads version "
            f"{SCHEMA_VERSION}: use the release that wrote it."
        )
    report = _decode_file(path, text, Report)
    try:
        for name in ("measurements", "board_checks"):
            for index, measurement in enumerate(getattr(report, name)):
                check(measurement, f"{name}[{index}].")
        check_ids(report.measurements)
    except FormError as error:
        raise ReportInputError(f"{path}: {error}.") from None
    return report


def latest_only(measurements: Iterable[Measurement]) -> tuple[Measurement, ...]:
    """Return the last measurement of each item, in order of the items' first appearance.

    A kernel that was verified after it had been measured keeps its figures.
    """
    found: dict[str, Measurement] = {}
    for item in measurements:
        known = found.get(item.node_id)
        same = known is not None and known.measured and known.kernel.digest == item.kernel.digest
        if not (same and item.verified_only):
            found[item.node_id] = item
    return tuple(found.values())


def joined(stations: Iterable[StationInfo]) -> tuple[StationInfo, ...]:
    """Return the stations, each once, as it was described last."""
    return tuple({station.gpu_uuid: station for station in stations}.values())


def read_text(path: Path) -> str:
    """Return the text of a report's file."""
    try:
        return _read_bytes(path).decode("utf-8")
    except UnicodeDecodeError:
        raise ReportInputError(f"{path} is not text.") from None


def _read_bytes(path: Path) -> bytes:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # reading a pipe might block forever
            raise ReportInputError(f"{path} is not a file: move it away, or name another run.")
        if status.st_size > MAX_BYTES:
            size = f"{status.st_size} bytes"
            raise ReportInputError(f"{path} is larger than a report may be: {size}.")
        return path.read_bytes()
    except FileNotFoundError:
        raise ReportInputError(f"{path} does not exist.") from None
    except OSError as error:
        raise ReportInputError(f"{path} cannot be read: {error.strerror}.") from None


def _decode_file(path: Path, text: str, kind: type[_T]) -> _T:
    try:
        return decode(text, kind)
    except FormError as error:
        raise ReportInputError(f"{path}: {error}.") from None


def _read_line(line: str | bytes, kind: type[_Record]) -> _Record:
    record = decode(line, kind)
    if isinstance(record, Measurement):
        check(record)
    return record


def _append(path: Path, record: Measurement | AnchorCheck | StationInfo) -> None:
    try:
        line = encode(record) + b"\n"
        _read_line(line, type(record))
    except (TypeError, ValueError, RecursionError) as error:
        raise ReportError(
            f"The result cannot be stored, because it could not be read back ({error}): give "
            "workloads and kernels plain names, text and finite numbers."
        ) from None
    with write_errors(path):
        descriptor = open_file(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            lock(descriptor)
            size = os.fstat(descriptor).st_size
            # A line truncated by a full disk or a crash must not corrupt the next one.
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                line = b"\n" + line
            while line:
                line = line[os.write(descriptor, line) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _lines(path: Path, kind: type[_Record]) -> Iterator[_Record]:
    if not is_there(path):
        return
    for number, line in enumerate(_read_bytes(path).split(b"\n"), start=1):
        if not line:
            continue
        try:
            yield _read_line(line, kind)
        except NotJsonError:
            continue  # truncated by a crash or a full disk, or damaged: the others are whole
        except FormError as error:
            raise ReportInputError(f"{path}, line {number}: {error}.") from None


@contextlib.contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Convert an OSError while ``path`` is written to a ReportError that names the file."""
    try:
        yield
    except OSError as error:
        raise ReportError(
            f"{error.filename or path} cannot be written: {error.strerror}."
        ) from None
