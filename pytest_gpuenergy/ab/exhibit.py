"""Exports items as jobs and draft measurements, so that another process can measure them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct

from pytest_gpuenergy.engine import StoredJob, read_job, write_job
from pytest_gpuenergy.kernels import Job
from pytest_gpuenergy.record import Measurement
from pytest_gpuenergy.support import (
    FormError,
    InputError,
    ReportError,
    decode,
    encode,
    is_there,
    read_bytes,
    write_atomically,
)
from pytest_gpuenergy.workloads import Workload

_LINES, _PROBLEMS = "items.jsonl", "problems.json"
_LARGEST_BYTES = 1 << 30


@dataclass(frozen=True)
class Exhibit:
    """One exported item of a run.

    Attributes:
        draft: The item's measurement without figures; with an error if the kernel failed
            verification.
        stored: The job to measure; None if the kernel failed.
    """

    draft: Measurement
    stored: StoredJob | None


def begin_export(folder: Path) -> None:
    """Create ``folder``; its existence records that energy items were collected.

    Raises:
        ReportError: it cannot be created.
    """
    with _explained(folder):
        folder.mkdir(parents=True, exist_ok=True)


def export_problems(folder: Path, problems: Sequence[str]) -> None:
    """Write the problems that failed the run as a whole, as sentences.

    Raises:
        ReportError: they cannot be written.
    """
    begin_export(folder)
    with _explained(folder):
        write_atomically(folder / _PROBLEMS, encode(list(problems)))


class _ExhibitLine(Struct, frozen=True):
    """An `Exhibit` as one line of JSON; ``job`` is the stored job's name."""

    draft: Measurement
    job: str | None


def export(folder: Path, draft: Measurement, job: Job, workload: Workload) -> None:
    """Add an item to ``folder``.

    Raises:
        ReportError: it cannot be written.
    """
    with _explained(folder):
        _append(folder, _ExhibitLine(draft, write_job(folder, job, workload)))


def export_failure(folder: Path, draft: Measurement) -> None:
    """Add an item whose kernel failed; ``draft`` has the error.

    Raises:
        ReportError: it cannot be written.
    """
    with _explained(folder):
        _append(folder, _ExhibitLine(draft, None))


def load_exhibits(folder: Path) -> tuple[Exhibit, ...]:
    """Read the items that were exported to ``folder``, in order; the last one of each node id.

    Raises:
        InputError: the files are damaged.
    """
    path = folder / _LINES
    if not is_there(path):
        return ()
    try:
        lines = read_bytes(path, "list of exported kernels", _LARGEST_BYTES).splitlines()
        found = [_exhibit(folder, decode(line, _ExhibitLine)) for line in lines]
    except (FormError, InputError) as error:
        raise InputError(f"The exported kernels in {folder} cannot be read: {error}.") from None
    return tuple({exhibit.draft.node_id: exhibit for exhibit in found}.values())


def load_problems(folder: Path) -> tuple[str, ...]:
    """Read what `export_problems` wrote to ``folder``; empty without problems.

    Raises:
        InputError: the file is damaged.
    """
    path = folder / _PROBLEMS
    if not is_there(path):
        return ()
    try:
        content = read_bytes(path, "list of problems", _LARGEST_BYTES)
        return decode(content, tuple[str, ...])
    except FormError as error:
        raise InputError(f"{path} cannot be read: {error}.") from None


def _exhibit(folder: Path, line: _ExhibitLine) -> Exhibit:
    return Exhibit(line.draft, None if line.job is None else read_job(folder, line.job))


@contextlib.contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ReportError(
            f"{error.filename or folder} cannot be written: {error.strerror}."
        ) from None


def _append(folder: Path, line: _ExhibitLine) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LINES).open("ab") as file:
        file.write(encode(line) + b"\n")
