"""What tunings came to, beside the record files: a table of them, and the rates of kernels."""

from __future__ import annotations

import csv
from dataclasses import fields
from pathlib import Path

from pytest_gpuenergy.support.errors import InputError
from pytest_gpuenergy.support.files import open_file
from pytest_gpuenergy.tvm.records import PERFORMANCE_FOLDER, file_name
from pytest_gpuenergy.tvm.sampling import write_performance
from pytest_gpuenergy.tvm.tuner import TuneResult
from pytest_gpuenergy.workloads.workload import Workload

TABLE_FILE = "tuning.csv"
_LISTS = ("gflops", "rejected")


def is_kept(folder: Path, workload: Workload) -> bool:
    """Whether `keep_outcome` has come to its end for this workload."""
    return (folder / PERFORMANCE_FOLDER / file_name(workload)).exists()


def keep_outcome(folder: Path, result: TuneResult) -> None:
    """Add a row to ``tuning.csv``, and write the kernels' rates, one integer GFLOP/s a line.

    The rates go into ``performance/`` under the name of the record file.

    Raises:
        InputError: a file cannot be written.
    """
    path = folder / TABLE_FILE
    names = [field.name for field in fields(TuneResult) if field.name not in _LISTS]
    try:
        new = not path.exists() or not path.stat().st_size  # as a full disk may have left it
        with open(path, "a", newline="", encoding="utf-8", opener=open_file) as stream:
            writer = csv.DictWriter(stream, names, extrasaction="ignore", lineterminator="\n")
            if new:
                writer.writeheader()
            writer.writerow(vars(result))
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}.") from None
    write_performance(folder / PERFORMANCE_FOLDER / result.path.name, result.gflops)
