"""Runs on disk: appended measurement by measurement, readable at any time, also after a crash."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from pytest_gpuenergy.record.anchor import AnchorCheck
from pytest_gpuenergy.record.measurement import Measurement, check
from pytest_gpuenergy.record.run import RunInfo
from pytest_gpuenergy.support.errors import ReportError, ReportInputError
from pytest_gpuenergy.support.files import lock, open_file, write_atomically
from pytest_gpuenergy.support.folders import followed
from pytest_gpuenergy.support.json_input import FormError, NotJsonError, decode, schema_version
from pytest_gpuenergy.support.json_output import dump, encode

SCHEMA_VERSION = 1
HOME = ".gpuenergy"
MAX_BYTES = 1 << 30
UNKNOWN_GPU = "unknown GPU"
_RUN, _LINES, _CHECKS, _LATEST = "run.json", "measurements.jsonl", "anchors.jsonl", "latest"
_RAW = (_RUN, _LINES, _CHECKS)
_WARNING = "# Made by pytest-gpuenergy: nothing here belongs in version control.\n*\n"
_T = TypeVar("_T")
_Record = TypeVar("_Record", bound=Measurement | AnchorCheck)


class Report(Struct, frozen=True, tag_field="schema_version", tag=SCHEMA_VERSION):
    """A run's identity with its measurements; of several runs merged, the last one's.

    ``anchors`` are the anchor kernels measured again, in the order of time.
    """

    run: RunInfo
    measurements: tuple[Measurement, ...]
    anchors: tuple[AnchorCheck, ...] = ()


class _RunFile(Struct, frozen=True):
    run: RunInfo


class RunFolder:
    """``.gpuenergy/runs/<run id>``: a run's identity, and a line for whatever was measured."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, root: Path, run: RunInfo) -> RunFolder:
        """Begin a run under ``root/.gpuenergy``.

        Raises:
            ReportError: it cannot be written there.
        """
        home = root / HOME
        folder = cls(home / "runs" / run.run_id)
        with _explained(folder.path):
            followed(folder.path).mkdir(parents=True, exist_ok=True)
            ignore = home / ".gitignore"
            if not ignore.exists():
                write_atomically(ignore, _WARNING)
            write_atomically(folder.path / _RUN, dump(_RunFile(run)))
            write_atomically(home / _LATEST, run.run_id + "\n")
        return folder

    def append(self, measurement: Measurement) -> None:
        """Add one measurement; it is on disk when this returns.

        Raises:
            ReportError: it cannot be written; what was written before is kept.
        """
        _append(self.path / _LINES, measurement)

    def append_check(self, check: AnchorCheck) -> None:
        """Add what came of measuring an anchor kernel again; as `append`."""
        _append(self.path / _CHECKS, check)

    def load(self) -> Report:
        """Everything measured so far. A line that a crash has cut short is left out.

        Raises:
            ReportInputError: the folder is not a run, or a line is damaged.
        """
        path = self.path / _RUN
        run = _read(path, read_text(path), _RunFile).run
        measurements = latest_only(_lines(self.path / _LINES, Measurement))
        return Report(run, measurements, tuple(_lines(self.path / _CHECKS, AnchorCheck)))


def is_run(folder: Path) -> bool:
    """Whether ``folder`` is the folder of a run."""
    return (folder / _RUN).exists()


def is_raw(path: Path) -> bool:
    """Whether ``path``, without links, is where a project's run keeps what it has measured."""
    return path.name in _RAW and HOME in path.parts


def files_read(path: Path) -> list[Path]:
    """The files that a report is read from: of a run, a JSON report or an older tool's outputs."""
    if not path.is_dir():
        return [path]
    return [path / name for name in _RAW] if is_run(path) else [*path.rglob("*.txt")]


def latest_run(root: Path) -> RunFolder | None:
    """The run begun last under ``root``, if there is any."""
    with contextlib.suppress(OSError, ReportError):
        name = read_text(root / HOME / _LATEST).strip()
        folder = root / HOME / "runs" / Path(name).name
        if name and is_run(folder):
            return RunFolder(folder)
    # That one was removed, or its name never written: ids sort by time.
    others = sorted(filter(is_run, (root / HOME / "runs").glob("*")))
    return RunFolder(others[-1]) if others else None


def find_run(named: Path, root: Path) -> Path:
    """``named``, or the run of that id under ``root`` where there is no such file or folder."""
    # Only the last part: an id is a plain name, which cannot lead out of the folder of runs.
    own = root / HOME / "runs" / named.name
    return own if not named.exists() and is_run(own) else named


def load_report(path: Path) -> Report:
    """A run folder, or a JSON report written from one.

    Raises:
        ReportInputError: it is neither; the message says what is wrong with it.
    """
    if path.is_dir():
        return RunFolder(path).load()
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
            f"{path} has schema version {version!r}, and this release reads version "
            f"{SCHEMA_VERSION}: use the release that wrote it."
        )
    report = _read(path, text, Report)
    try:
        for index, measurement in enumerate(report.measurements):
            check(measurement, f"measurements[{index}].")
    except FormError as error:
        raise ReportInputError(f"{path}: {error}.") from None
    return report


def merge(reports: Sequence[Report]) -> Report:
    """One report of several runs on the same GPU; of an item measured twice, the later one.

    Raises:
        ReportInputError: the runs are of different GPUs or of unknown ones, or real and emulated
            ones, or measured and legacy ones, or of a hot and a cold cache.
    """
    ordered = sorted(reports, key=lambda report: report.run.started)
    last = ordered[-1]
    for report in ordered:
        for name in ("gpu_name", "emulated", "legacy"):
            ours, theirs = getattr(last.run, name), getattr(report.run, name)
            if ours != theirs:
                raise ReportInputError(
                    f"Runs {last.run.run_id} and {report.run.run_id} cannot be merged: "
                    f"{name} is {ours!r} in one and {theirs!r} in the other."
                )
    if len(ordered) > 1 and last.run.gpu_name == UNKNOWN_GPU:
        raise ReportInputError(
            f"Runs {ordered[0].run.run_id} and {last.run.run_id} cannot be merged, because it is "
            "not known that they are of the same GPU: name it with --gpu."
        )
    measurements = [m for report in ordered for m in report.measurements]
    if len({m.cache for m in measurements}) > 1:
        raise ReportInputError(
            f"Runs {ordered[0].run.run_id} and {last.run.run_id} cannot be merged: kernels were "
            "measured with a hot cache in one and a cold one in another."
        )
    anchors = tuple(check for report in ordered for check in report.anchors)
    tables = [report.run.cap_table_w for report in ordered if report.run.cap_table_w]
    run = replace(last.run, cap_table_w=tables[-1]) if tables else last.run
    return Report(run, latest_only(measurements), anchors)


def latest_only(measurements: Iterable[Measurement]) -> tuple[Measurement, ...]:
    """The last measurement of each item, in the order in which the items first appear."""
    return tuple({item.node_id: item for item in measurements}.values())


def read_text(path: Path) -> str:
    """The text of a file of ours.

    Raises:
        ReportInputError: it is missing, huge or not text.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # reading a pipe might never end
            raise ReportInputError(f"{path} is not a file.")
        if status.st_size > MAX_BYTES:
            raise ReportInputError(f"{path} is larger than any report: {status.st_size} bytes.")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ReportInputError(f"{path} does not exist.") from None
    except UnicodeDecodeError:
        raise ReportInputError(f"{path} is not text.") from None
    except OSError as error:
        raise ReportInputError(f"{path} cannot be read: {error.strerror}.") from None


def _read(path: Path, text: str, kind: type[_T]) -> _T:
    try:
        return decode(text, kind)
    except FormError as error:
        raise ReportInputError(f"{path}: {error}.") from None


def _read_line(line: str | bytes, kind: type[_Record]) -> _Record:
    record = decode(line, kind)
    if isinstance(record, Measurement):
        check(record)
    return record


def _append(path: Path, record: Measurement | AnchorCheck) -> None:
    try:
        line = encode(record) + b"\n"
        _read_line(line, type(record))
    except (TypeError, ValueError, RecursionError) as error:
        raise ReportError(
            f"This cannot be kept, since no report could be read back with it ({error}): give "
            "workloads and kernels plain names, texts and finite numbers."
        ) from None
    with _explained(path):
        descriptor = open_file(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            lock(descriptor)
            size = os.fstat(descriptor).st_size
            # A line that a full disk or a crash has cut short must not spoil the next one.
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                line = b"\n" + line
            _write_all(descriptor, line)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _lines(path: Path, kind: type[_Record]) -> Iterator[_Record]:
    if not path.exists():
        return
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line:
            continue
        try:
            yield _read_line(line, kind)
        except NotJsonError:
            continue  # cut short by a crash or a full disk
        except FormError as error:
            raise ReportInputError(f"{path}, line {number}: {error}.") from None


def _write_all(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ReportError(
            f"{error.filename or path} cannot be written: {error.strerror}."
        ) from None
