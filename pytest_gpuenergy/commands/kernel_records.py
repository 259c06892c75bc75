"""The record files that the options of ``gpuenergy kernels`` name."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuenergy.support.errors import InputError
from pytest_gpuenergy.support.files import is_folder
from pytest_gpuenergy.support.project import nearest
from pytest_gpuenergy.tuning.names import TUNER_NAMES

if TYPE_CHECKING:
    from pytest_gpuenergy.tuning.records import RecordFile

RECORDS = Path("bench", "records")
"""The default folder of records, relative to the current folder or one above it."""


def add_case(parser: ArgumentParser) -> None:
    """Add ``--case``, which names workloads."""
    parser.add_argument(
        "--case", metavar="LIST", help="all, or workloads such as case1,case5 (default: all)"
    )


def add_records(parser: ArgumentParser) -> None:
    """Add ``--records`` and ``--tuner``."""
    parser.add_argument(
        "--records",
        metavar="PATH",
        type=Path,
        help="Record file, folder of them, or folder with one such folder per GPU model "
        f"(default: {RECORDS} here or in a parent folder)",
    )
    parser.add_argument(
        "--tuner",
        choices=TUNER_NAMES,
        help="Only kernels of this tuner (default: of all)",
    )


def load_record_files(records: Path | None) -> list[RecordFile]:
    """The record files that ``--records`` names, or those of the current project.

    Raises:
        InputError: there are none, or one is damaged.
    """
    from pytest_gpuenergy.tuners import load_records
    from pytest_gpuenergy.tuning.record_folders import record_paths

    if records is None:
        records = nearest(Path.cwd(), RECORDS)
        if records is None:
            raise InputError(
                f"There is no folder {RECORDS} here or above: name record files with --records."
            )
    if not is_folder(records):
        return [load_records(records)]
    paths = record_paths(records)
    if not paths:
        raise InputError(
            f"There are no record files in {records}: make them with gpuenergy tune, "
            "or name others with --records."
        )
    return [load_records(path) for path in paths]


def files_of(arguments: Namespace) -> list[RecordFile]:
    """The record files that ``--records``, ``--tuner`` and the cases name."""
    from pytest_gpuenergy.tuners import FORMS

    files = load_record_files(arguments.records)
    if arguments.tuner is not None:
        files = [file for file in files if file.form == FORMS[arguments.tuner]]
    return choose_cases(files, arguments.case)


def choose_cases(files: Sequence[RecordFile], words: str | None) -> list[RecordFile]:
    """The files of the workloads that ``--case`` names, or all files without it.

    A workload without records of its own gets those of its shape, under its name.

    Raises:
        InputError: there are no records for one of them.
    """
    if words is None or words == "all":
        return list(files)
    chosen: list[RecordFile] = []
    for name in dict.fromkeys(word.strip() for word in words.split(",")):
        own = [file for file in files if file.workload.name == name]
        found = own or _of_its_shape(files, name)
        if not found:
            known = ", ".join(dict.fromkeys(file.workload.name for file in files)) or "none"
            raise InputError(f"There are no records for {name!r}, only for {known}.")
        chosen += found
    return chosen


def _of_its_shape(files: Sequence[RecordFile], name: str) -> list[RecordFile]:
    """The records for the shape of the workload ``name``, one file for each GPU and tuner."""
    from pytest_gpuenergy.workloads import all_networks

    known = {w.name: w for network in all_networks(Path.cwd()).values() for w in network}
    workload = known.get(name)
    by_gpu: dict[tuple[str, str], RecordFile] = {}
    for file in files:
        if workload is not None and file.workload.signature == workload.signature:
            by_gpu.setdefault((file.gpu, file.form.tuner), replace(file, workload=workload))
    return list(by_gpu.values())


def only_set(files: Sequence[RecordFile], case: str) -> RecordFile:
    """The only one of the ``files`` for the workload ``case``.

    Raises:
        InputError: there are several.
    """
    if len(files) > 1:
        tuned = ", ".join(f"by {file.form.tuner} for {file.gpu}" for file in files)
        raise InputError(
            f"There are several sets of records for {case} (tuned {tuned}): name one folder with "
            "--records, and one tuner with --tuner."
        )
    return files[0]
