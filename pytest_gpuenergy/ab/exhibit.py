"""Exports items as jobs and draft measurements, so that another process can measure them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct

from pytest_gpuenergy.engine import PreparedJob, StoredJob, read_job, write_job
from pytest_gpuenergy.kernels import Job
from pytest_gpuenergy.record import Measurement
from pytest_gpuenergy.report import write_errors
from pytest_gpuenergy.support import (
    FormError,
    InputError,
    decode,
    encode,
    is_there,
    read_bytes,
    write_atomically,
)
from pytest_gpuenergy.workloads import Workload

_LINES, _PROBLEMS = "items.jsonl", "problems.json"
_MAX_BYTES = 1 << 30


@dataclass(frozen=True)
class Exhibit:
    """One exported item of a run.

    Attributes:
        draft: The item's measurement without figures; with an error if the kernel failed
            verification.
        stored: The job to measure; None if the kernel failed.
    """

    draft: Measurement
    stored: StoredJob | PreparedJob | None


def begin_export(folder: Path) -> None:
    """Create ``folder``; its existence records that energy items were collected.

    Raises:
        ReportError: it cannot be created.
    """
    with write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)


def export_problems(folder: Path, problems: Sequence[str]) -> None:
    """Write the problems that failed the run as a whole, as sentences.

    Raises:
        ReportError: they cannot be written.
    """
    begin_export(folder)
    with write_errors(folder):
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
    with write_errors(folder):
        _append(folder, draft, write_job(folder, job, workload))


def export_failure(folder: Path, draft: Measurement) -> None:
    """Add an item whose kernel failed; ``draft`` has the error.

    Raises:
        ReportError: it cannot be written.
    """
    with write_errors(folder):
        _append(folder, draft, None)


def _append(folder: Path, draft: Measurement, job: str | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LINES).open("ab") as file:
        file.write(encode(_ExhibitLine(draft, job)) + b"\n")


def load_exhibits(folder: Path) -> tuple[Exhibit, ...]:
    """Read the items that were exported to ``folder``, in order; the last one of each node id.

    Raises:
        InputError: the files are damaged.
    """
    path = folder / _LINES
    if not is_there(path):
        return ()
    try:
        lines = read_bytes(path, "list of exported kernels", _MAX_BYTES).splitlines()
        exhibits: dict[str, Exhibit] = {}
        for line in lines:
            found = decode(line, _ExhibitLine)
            job = None if found.job is None else read_job(folder, found.job)
            exhibits[found.draft.node_id] = Exhibit(found.draft, job)
    except (FormError, InputError) as error:
        raise InputError(f"The exported kernels in {folder} cannot be read: {error}.") from None
    return tuple(exhibits.values())


def load_problems(folder: Path) -> tuple[str, ...]:
    """Read what `export_problems` wrote to ``folder``; empty without problems.

    Raises:
        InputError: the file is damaged.
    """
    path = folder / _PROBLEMS
    if not is_there(path):
        return ()
    try:
        content = read_bytes(path, "list of problems", _MAX_BYTES)
        return decode(content, tuple[str, ...])
    except FormError as error:
        raise InputError(f"{path} cannot be read: {error}.") from None
