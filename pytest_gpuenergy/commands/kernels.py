"""``gpuenergy kernels``: lists, shows and exports the kernels of record files, samples logs."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpuenergy.commands import (
    Subparsers,
    add_command,
    kernels_sample,
    print_json,
    print_table,
)
from pytest_gpuenergy.support.errors import InputError
from pytest_gpuenergy.support.files import is_folder
from pytest_gpuenergy.support.project import nearest
from pytest_gpuenergy.tuning.names import TUNER_NAMES

if TYPE_CHECKING:
    from pytest_gpuenergy.tuning.records import Record, RecordFile

RECORDS = Path("bench", "records")
"""The default folder of records, relative to the current folder or one above it."""


def add_parser(subparsers: Subparsers) -> None:
    """Add ``kernels`` with ``list``, ``show``, ``export`` and ``sample``."""
    parser = add_command(
        subparsers,
        "kernels",
        None,
        summary="List, show or export tuned kernels, or sample the log of a search",
        description="Kernels come from record files: those in this project's bench/records, or "
        "those that --records names. Showing and exporting kernels of TVM needs TVM.",
        example="""
gpuenergy kernels list --case case1
gpuenergy kernels show case1 1
gpuenergy kernels export --case case1,case5 --kernels top1 --out exported
""",
    )
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)
    for action in (_add_list(actions), _add_show(actions), _add_export(actions)):
        action.add_argument(
            "--records",
            metavar="PATH",
            type=Path,
            help="Record file, folder of them, or folder with one such folder per GPU model "
            f"(default: {RECORDS} here or in a parent folder)",
        )
        action.add_argument(
            "--tuner",
            choices=TUNER_NAMES,
            help="Only kernels of this tuner (default: of all)",
        )
        action.add_argument("--json", action="store_true", help="Print JSON")
    kernels_sample.add_parser(actions)


def _add_list(actions: Subparsers) -> ArgumentParser:
    parser = add_command(
        actions,
        "list",
        _list,
        summary="List kernels with their figures on the GPU that they were tuned for",
        example="gpuenergy kernels list --case case1,case5 --json",
    )
    _add_case(parser)
    return parser


def _add_show(actions: Subparsers) -> ArgumentParser:
    parser = add_command(
        actions,
        "show",
        _show,
        summary="Print one kernel's source and launch plan",
        example="gpuenergy kernels show case1 1 > kernel01.cu",
    )
    parser.add_argument("case", metavar="CASE", help="Workload, such as case1")
    parser.add_argument("rank", metavar="RANK", type=int, help="Rank, 1 = fastest")
    return parser


def _add_export(actions: Subparsers) -> ArgumentParser:
    parser = add_command(
        actions,
        "export",
        _export,
        summary="Write kernels as CUDA sources that build without this package",
        description="Each source comes with its launch plan, which load_kernel reads. A driver and "
        "a CMakeLists.txt build one program per kernel, which verifies it and then times it.",
        example="""
gpuenergy kernels export --case case1 --kernels top1 --out exported
cmake -S exported -B exported/build && cmake --build exported/build
ctest --test-dir exported/build --verbose
""",
    )
    _add_case(parser)
    parser.add_argument(
        "--kernels",
        metavar="LIST",
        default="all",
        help="all, top1, top2, ..., or ranks such as 1,5,25 (default: all)",
    )
    parser.add_argument(
        "--out", metavar="DIR", type=Path, required=True, help="New or empty folder to write to"
    )
    return parser


def _add_case(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--case", metavar="LIST", help="all, or workloads such as case1,case5 (default: all)"
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


def _files(arguments: Namespace) -> list[RecordFile]:
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


def _list(arguments: Namespace) -> int:
    files = _files(arguments)
    if arguments.json:
        print_json([_entry(file, record) for file in files for record in file.records])
        return 0
    rows = [
        (
            file.workload.name,
            str(record.rank),
            record.band,
            file.form.tuner,
            file.gpu,
            *_figures(file, record),
        )
        for file in files
        for record in file.records
    ]
    figures = ("time", "power", "energy", "search time")
    print_table(("workload", "rank", "band", "tuner", "tuned for", *figures), rows)
    return 0


def _entry(file: RecordFile, record: Record) -> dict[str, Any]:
    return {
        "workload": file.workload.name,
        "parameters": dict(file.workload.parameters),
        "rank": record.rank,
        "band": record.band,
        "tuner": file.form.tuner,
        "tuned_for": file.gpu,
        "measured": None if record.measured is None else asdict(record.measured),
        "search_time_ms": file.search_ms(record.rank),
    }


def _figures(file: RecordFile, record: Record) -> tuple[str, str, str, str]:
    from pytest_gpuenergy.report.tables import energy, time

    search = time(file.search_ms(record.rank))
    if record.measured is None:
        return ("-", "-", "-", search)
    measured = record.measured
    power = f"{measured.power_w:.0f} W"
    return (time(measured.time_ms), power, energy(measured.energy_mj), search)


def _show(arguments: Namespace) -> int:
    from pytest_gpuenergy.kernels.source import plan_of
    from pytest_gpuenergy.tuners import kernels_of

    files = _files(arguments)
    file = _only(files, arguments.case)
    kernel = kernels_of(file, [file.record(arguments.rank).rank])[0]
    plan = plan_of(kernel, f"kernel{arguments.rank:02d}.cu")
    if arguments.json:
        print_json({**plan, "source_text": kernel.source})
        return 0
    print(f"// {arguments.case} kernel {arguments.rank}, tuned for {file.gpu}")
    for launch in kernel.launches:
        print(
            f"// {launch.entry}<<<{launch.grid}, {launch.block}, {launch.shared_bytes}>>>"
            f"({', '.join(launch.arguments)})"
        )
    print(kernel.source)
    return 0


def _only(files: Sequence[RecordFile], case: str) -> RecordFile:
    if len(files) > 1:
        tuned = ", ".join(f"by {file.form.tuner} for {file.gpu}" for file in files)
        raise InputError(
            f"There are several sets of records for {case} (tuned {tuned}): name one folder with "
            "--records, and one tuner with --tuner."
        )
    return files[0]


def _export(arguments: Namespace) -> int:
    from pytest_gpuenergy.kernels.export import RankedKernel, export_kernels, require_empty
    from pytest_gpuenergy.tuners import kernels_of
    from pytest_gpuenergy.tuning.record_folders import choose_ranks

    files = _files(arguments)
    for file in files:
        name = file.workload.name  # exported folders are named after it
        same = [other for other in files if other.workload.name == name]
        if any(other.workload != file.workload for other in same):
            raise InputError(
                f"There are records for several workloads called {name}: remove the outdated file, "
                "or name another folder with --records."
            )
        _only(same, name)
    chosen = [(file, choose_ranks(arguments.kernels, file.ranks)) for file in files]
    require_empty(arguments.out)  # before minutes of lowering, not after
    kernels = [
        RankedKernel(file.workload, rank, kernel)
        for file, ranks in chosen
        for rank, kernel in zip(ranks, kernels_of(file, ranks), strict=True)
    ]
    written = export_kernels(kernels, arguments.out)
    if arguments.json:
        print_json([str(path) for path in written])
    else:
        print(f"wrote {len(kernels)} kernels to {arguments.out}: {written[0]} lists them")
    return 0
