"""What tunings came to, beside the record files: a table of them, and the rates of kernels."""

from __future__ import annotations

import csv
from dataclasses import fields
from pathlib import Path

from pytest_gpuenergy.tuning.tuner import TuneResult

TABLE_FILE = "tuning.csv"


def append_outcome(folder: Path, result: TuneResult) -> None:
    """Add a row to ``tuning.csv`` in ``folder``: when a tuning began and what it came to."""
    path = folder / TABLE_FILE
    names = [field.name for field in fields(TuneResult) if field.name != "rejected"]
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, names, extrasaction="ignore", lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(vars(result))
