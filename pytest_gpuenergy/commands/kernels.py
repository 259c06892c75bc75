"""``gpuenergy kernels``: lists, shows and exports the kernels of record files, samples logs."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pytest_gpuenergy.commands import kernels_export, kernels_sample
from pytest_gpuenergy.commands.command_line import Subparsers, add_command, print_json, print_table
from pytest_gpuenergy.commands.kernel_records import (
    add_case,
    add_records,
    files_of,
    only_set,
    parse_rank,
)
from pytest_gpuenergy.support import InputError

if TYPE_CHECKING:
    from pytest_gpuenergy.tuning import Record, RecordFile


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
gpuenergy kernels export --gemm "MNK=1024 mode=3xtf32" --out exported
""",
    )
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)
    for action in (_add_list(actions), _add_show(actions), kernels_export.add_parser(actions)):
        add_records(action)
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
    add_case(parser)
    return parser


def _add_show(actions: Subparsers) -> ArgumentParser:
    parser = add_command(
        actions,
        "show",
        _show,
        summary="Print one kernel's source and launch plan",
        example="gpuenergy kernels show case1 1 > kernel01.cu\n"
        "gpuenergy kernels show 'bench/test_conv2d.py::test_conv2d[case1-k01-300W]'",
    )
    parser.add_argument(
        "case", metavar="CASE", help="Workload, such as case1 or 1, or an id that a report shows"
    )
    parser.add_argument(
        "rank", metavar="RANK", type=_rank, nargs="?", help="1 or k01 for the fastest, ..."
    )
    return parser


def _rank(text: str) -> int:
    if (rank := parse_rank(text)) is None:
        raise ArgumentTypeError(f"{text[:40]!r} is not a rank, such as 1 or k01")
    return rank


def _list(arguments: Namespace) -> int:
    files = files_of(arguments)
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
    from pytest_gpuenergy.report import energy, time

    search = time(file.search_ms(record.rank))
    if record.measured is None:
        return ("-", "-", "-", search)
    measured = record.measured
    power = f"{measured.power_w:.0f} W"
    return (time(measured.time_ms), power, energy(measured.energy_mj), search)


def _show(arguments: Namespace) -> int:
    from pytest_gpuenergy.kernels import launch_plan
    from pytest_gpuenergy.tuners import kernels_of

    word = arguments.case
    arguments.case, arguments.network = [word], []
    file = only_set(files_of(arguments), word)
    if arguments.rank is None and len(file.records) > 1:
        raise InputError(
            f"There are {len(file.records)} kernels for {word}: name one, such as "
            f"{file.workload.name} 1 or {file.workload.name}-k01."
        )
    rank = file.records[0].rank if arguments.rank is None else file.record(arguments.rank).rank
    kernel = kernels_of(file, [rank])[0]
    plan = launch_plan(kernel, f"kernel{rank:02d}.cu")
    if arguments.json:
        print_json({**plan, "source_text": kernel.source})
        return 0
    print(f"// {file.workload.name} kernel {rank}, tuned for {file.gpu}")
    for launch in kernel.launches:
        print(
            f"// {launch.entry}<<<{launch.grid}, {launch.block}, {launch.shared_bytes}>>>"
            f"({', '.join(launch.arguments)})"
        )
    print(kernel.source)
    return 0
