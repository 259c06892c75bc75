"""Folders of logs, and logs with the chosen trials only."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path

from pytest_gpuenergy.support import InputError, is_file, is_folder, read_unpacked, write_atomically
from pytest_gpuenergy.tvm.database import RECORD_FILE, beside, workload_path
from pytest_gpuenergy.tvm.sampling import Sampled, Search

_PACKED = (".gz", ".xz")
_LOGS = (".json", ".jsonl", ".log")
_LARGEST_BYTES = 1 << 30


def is_database(folder: Path) -> bool:
    """Whether ``folder`` has a database of MetaSchedule in it."""
    return beside(folder / RECORD_FILE) is not None


def logs_in(folder: Path) -> list[Path]:
    """The logs in ``folder``, by name: files named like logs, and folders of databases.

    Raises:
        InputError: there are none, or the folder cannot be read.
    """
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise InputError(f"{folder} cannot be read: {error.strerror}.") from None
    found = [
        path
        for path in entries
        if (is_folder(path) and is_database(path))
        or (is_file(path) and plain_name(path).endswith(_LOGS) and path.name[0] != ".")
    ]
    if not found:
        raise InputError(
            f"There are no logs in {folder}: name a folder of files ending in "
            f"{', '.join(_LOGS)}, plain or compressed (.gz, .xz), or of MetaSchedule's databases."
        )
    return found


def plain_name(path: Path) -> str:
    """The file's name without the ending of its compression."""
    return path.stem if path.name.endswith(_PACKED) else path.name


def write_filtered(log: Path, search: Search, chosen: Sequence[Sampled], folder: Path) -> Path:
    """Write the chosen lines of a log to ``folder``, in the order given and as they are.

    A database keeps its names, in a folder named after its own, with its file of workloads.

    Args:
        log: as the user named it.
        search: what was read from it.
        chosen: trials of it.
        folder: where to write.

    Returns:
        The file of trials.

    Raises:
        InputError: a file cannot be written, or would replace the log.
    """
    place = folder / log.absolute().name if is_folder(log) else folder
    lines = io.BytesIO(read_unpacked(search.path, "log", _LARGEST_BYTES)).read().split(b"\n")
    texts = [lines[pick.line - 1].rstrip(b"\r") for pick in chosen]
    target = place / plain_name(search.path)
    _write(target, b"".join(text + b"\n" for text in texts), search.path)
    named = workload_path(search.path)
    workloads = None if named is None else beside(named)
    if workloads is not None:
        content = read_unpacked(workloads, "database", _LARGEST_BYTES)
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
