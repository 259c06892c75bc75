"""The results of tunings besides record files: a table of them, and the rates of kernels."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from pytest_gpuenergy.support import InputError, csv_text, is_there, write_atomically
from pytest_gpuenergy.tuning.records import PERFORMANCE_FOLDER

TABLE_FILE = "tuning.csv"
_LISTS = ("gflops", "rejected")


@dataclass(frozen=True)
class TuneResult:
    """The result of tuning one workload.

    Attributes:
        workload: its name.
        path: the record file.
        started: start time in ISO 8601.
        tried: trials in the folder, of which ``valid`` ran.
        kept: kernels in the record file.
        best_ms: time of a launch of the best kernel in the search.
        best_gflops: the same as a rate.
        gflops: the rate of each kernel in the record file, in its order.
        rejected: why chosen kernels were replaced.
        search_s: wall time of this search.
        elapsed_s: wall time of the search and everything after it.
        energy_j: energy that the card took meanwhile; None if it has no energy counter.
        gpu: the GPU's name; that of an emulated one says so.
        emulated: whether all figures are those of an emulated GPU, recorded or modelled.
    """

    workload: str
    path: Path
    started: str
    tried: int
    valid: int
    kept: int
    best_ms: float
    best_gflops: float
    gflops: tuple[float, ...]
    rejected: tuple[str, ...]
    search_s: float
    elapsed_s: float
    energy_j: float | None
    gpu: str = ""
    emulated: bool = False


def is_kept(path: Path) -> bool:
    """Whether `keep_outcome` has been completed for this record file."""
    return is_there(path.parent / PERFORMANCE_FOLDER / path.name)


def keep_outcome(folder: Path, result: TuneResult) -> None:
    """Add a row to ``tuning.csv``, and write the kernels' rates, one integer GFLOP/s per line.

    The rates are written to ``performance/``, under the name of the record file. Those of an
    emulated GPU begin with a comment that says so.

    Raises:
        InputError: a file cannot be written.
    """
    path = folder / TABLE_FILE
    names = [field.name for field in fields(TuneResult) if field.name not in _LISTS]
    try:
        new = not is_there(path) or not path.stat().st_size  # as a full disk may have left it
        if not new:
            _complete(path, names)
        with path.open("a", newline="", encoding="utf-8") as stream:
            rows = [[getattr(result, name) for name in names]]
            stream.write(csv_text([names, *rows] if new else rows))
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}.") from None
    comment = f"{result.gpu}: recorded or modelled figures" if result.emulated else ""
    write_performance(folder / PERFORMANCE_FOLDER / result.path.name, result.gflops, comment)


def _complete(path: Path, names: Sequence[str]) -> None:
    """Add the columns that the table of an older release lacks, with empty cells."""
    with path.open(newline="", encoding="utf-8") as stream:
        header, *rows = csv.reader(stream)
    missing = names[len(header) :]
    if missing and list(names[: len(header)]) == header:
        write_atomically(path, csv_text([names, *([*row, *[""] * len(missing)] for row in rows)]))


def write_performance(path: Path, gflops: Iterable[float], comment: str = "") -> None:
    """Write the rounded GFLOP/s, one integer per line; the file is complete or not written at all.

    A ``comment`` is a line before them that begins with ``#``.

    Raises:
        InputError: it cannot be written.
    """
    text = f"# {comment}\n" if comment else ""
    text += "".join(f"{round(figure)}\n" for figure in gflops)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror}): choose a file in a folder that you may "
            "write to."
        ) from None
