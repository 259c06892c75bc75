"""The record files of TVM's tuner; see `tuning.records` and `tuning.record_folders`."""

from __future__ import annotations

from pathlib import Path

from pytest_gpuenergy.support.errors import InputError
from pytest_gpuenergy.tuning import record_folders, records
from pytest_gpuenergy.tuning.records import RecordFile
from pytest_gpuenergy.tvm.ansor import refuse_ansor
from pytest_gpuenergy.tvm.recipe import METASCHEDULE
from pytest_gpuenergy.workloads.workload import Workload


def load_records(path: Path) -> RecordFile:
    """Read a record file; nothing in it is executed.

    Raises:
        InputError: the file is missing, damaged, of another format or inconsistent.
    """
    try:
        return records.load_records(path, [METASCHEDULE])
    except InputError:
        refuse_ansor(path)  # old logs may have the name of a record file
        raise


def records_of(folder: Path, workload: Workload, gpu: str | None = None) -> RecordFile:
    """The records in ``folder`` that serve ``workload``, under its name.

    Args:
        folder: contains record files, or one folder of them per GPU model.
        workload: what is to be computed.
        gpu: model of the GPU that will compute it, whose records are preferred.

    Raises:
        UnavailableError: there are none.
        InputError: the file cannot be used or is for another shape.
    """
    return record_folders.records_of(folder, workload, load_records, gpu)
