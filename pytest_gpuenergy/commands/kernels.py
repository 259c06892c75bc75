"""``gpuenergy kernels``: lists, shows and exports the kernels of record files, samples logs."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pytest_gpuenergy import kernels, report as reports, tuners, tuning, workloads
from pytest_gpuenergy.commands.command_line import (
    Subparsers,
    add_command,
    count,
    path_argument,
    print_json,
    print_table,
    tell,
)
from pytest_gpuenergy.commands.kernel_records import (
    add_choice,
    add_product_options,
    add_records,
    add_variant_options,
    chosen_files,
    only_set,
    parse_rank,
    product_kernels,
)
from pytest_gpuenergy.opening import open_device
from pytest_gpuenergy.support import InputError, counted, is_folder


def add_parser(subparsers: Subparsers, summary: str) -> None:
    """Add ``kernels`` with ``list``, ``show``, ``export`` and ``sample``."""
    parser = add_command(
        subparsers,
        "kernels",
        None,
        summary=summary,
        description="Kernels come from record files: those in this project's bench/records, or "
        "those that --records names. Showing and exporting kernels of TVM needs TVM.",
        example="""
gpuenergy kernels list --case case1
gpuenergy kernels list --network resnet --mode 3xtf32
gpuenergy kernels show case1 1
gpuenergy kernels export --case case1,case5 --kernels top1 --out exported
gpuenergy kernels export --gemm "MNK=1024 mode=3xtf32" --out exported
""",
    )
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)
    for action in (_add_list(actions), _add_show(actions), _add_export(actions)):
        add_variant_options(action)
        add_records(action)
        action.add_argument("--json", action="store_true", help="Print JSON")
    _add_sample(actions)


def _add_list(actions: Subparsers) -> ArgumentParser:
    parser = add_command(
        actions,
        "list",
        _list,
        summary="List kernels with their figures on the GPU that they were tuned for",
        example="gpuenergy kernels list --case case1,case5 --json",
    )
    add_choice(parser, "Workloads")
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
        "rank",
        metavar="RANK",
        type=_rank,
        nargs="?",
        help="Rank of the kernel: 1 or k01 for the fastest, and so on",
    )
    return parser


def _rank(text: str) -> int:
    if (rank := parse_rank(text)) is None:
        raise ArgumentTypeError(f"{text[:40]!r} is not a rank, such as 1 or k01")
    return rank


def _list(arguments: Namespace) -> int:
    entries: list[dict[str, Any]] = []
    rows = []
    for file in chosen_files(arguments):
        for record in file.records:
            name, measured = file.workload.name, record.measured
            searched_ms = tuners.search_ms(file, record.rank)
            entries.append(
                {
                    "workload": name,
                    "parameters": dict(file.workload.parameters),
                    "rank": record.rank,
                    "band": record.band,
                    "tuner": file.tuner,
                    "tuned_for": file.gpu,
                    "measured": None if measured is None else asdict(measured),
                    "search_time_ms": searched_ms,
                }
            )
            figures = ("-", "-", "-")
            if measured is not None:
                power = f"{measured.power_w:.0f} W"
                figures = (
                    reports.time(measured.time_ms),
                    power,
                    reports.energy(measured.energy_mj),
                )
            row = (name, str(record.rank), record.band, file.tuner, file.gpu)
            rows.append((*row, *figures, reports.time(searched_ms)))
    if arguments.json:
        print_json(entries)
    else:
        figures = ("time", "power", "energy")
        print_table(
            ("workload", "rank", "band", "tuner", "tuned for", *figures, "search time"), rows
        )
    return 0


def _show(arguments: Namespace) -> int:
    word = arguments.case
    arguments.case, arguments.network = [word], []
    files = chosen_files(arguments)
    if len(names := dict.fromkeys(file.workload.name for file in files)) > 1:
        raise InputError(
            f"There are kernels of {word} in several modes or layouts: name one of "
            f"{', '.join(names)}."
        )
    file = only_set(files, word)
    if arguments.rank is None and len(file.records) > 1:
        raise InputError(
            f"There are {len(file.records)} kernels for {word}: name one, such as "
            f"{file.workload.name} 1 or {file.workload.name}-k01."
        )
    rank = file.records[0].rank if arguments.rank is None else file.record(arguments.rank).rank
    kernel = tuners.kernels_of(file, [rank])[0]
    plan = kernels.launch_plan(kernel, f"kernel{rank:02d}.cu")
    if arguments.json:
        print_json({**plan, "source_text": kernel.source})
        return 0
    print(f"// {file.workload.name} kernel {rank}, tuned for {file.gpu}")
    for launch in kernel.launches:
        print(
            f"// {launch.entry}<<<{launch.grid}, {launch.block}, {launch.shared_bytes}>>>"
            f"({', '.join(map(kernels.argument_text, launch.arguments))})"
        )
    print(kernel.source)
    return 0


_OUT = Path("exported")
_ONLY_RECORDS = ("case", "network", "layout", "bias", "relu", "kernels", "tuner")
"""The options of ``export`` that choose among record files, and are refused beside ``--gemm``."""
_ONLY_PRODUCTS = ("contender", "gpu_device")
"""The options of ``export`` that need ``--gemm``."""


def _add_export(actions: Subparsers) -> ArgumentParser:
    """Add ``export``."""
    parser = add_command(
        actions,
        "export",
        _export,
        summary="Write kernels as CUDA sources that build without this package",
        description="Each source comes with its launch plan, which load_kernel reads. A driver and "
        "a CMakeLists.txt build one program per kernel, which verifies it and then measures its "
        "time and energy. Kernels are those of record files or, with --gemm, those that a "
        "contender makes for matrix products.",
        example="""
gpuenergy kernels export --case case1 --kernels top1 --out exported
gpuenergy kernels export --gemm "MNK=1024; M=512 N=256 K=640 layout=nt" --out exported
cmake -S exported -B exported/build && cmake --build exported/build
ctest --test-dir exported/build --verbose
""",
    )
    add_choice(parser, "Workloads")
    parser.add_argument(
        "--kernels",
        metavar="LIST",
        help="all, top1, top2, ..., or ranks such as 1,5,25 or k01 (default: all)",
    )
    parser.add_argument(
        "--gemm",
        metavar="SIZES",
        help="Matrix products, such as 'MNK=4096; M=512 N=256 K=640 layout=nt mode=3xtf32', "
        "instead of --case and --kernels",
    )
    add_product_options(parser)
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=path_argument,
        default=_OUT,
        help="Folder to write to: a new one, or that of an earlier export, which is replaced "
        f"(default: {_OUT})",
    )
    return parser


def _export(arguments: Namespace) -> int:
    """Write the chosen kernels, and the program that measures them."""
    for name in _ONLY_PRODUCTS if arguments.gemm is None else _ONLY_RECORDS:
        if getattr(arguments, name):
            option = f"--{name.replace('_', '-')}"
            raise InputError(
                f"{option} is only for matrix products: name them with --gemm."
                if arguments.gemm is None
                else f"{option} chooses among record files, and --gemm names matrix products "
                "instead: leave out one of them."
            )
    kernels.check_exportable(arguments.out)  # before minutes of lowering, not after
    architecture, made_for = None, ""
    if arguments.gemm is None:
        chosen = _recorded(arguments)
    else:
        with open_device(arguments.gpu_device or "auto") as device:
            chosen = product_kernels(
                arguments.gemm, arguments.mode, arguments.contender, device, arguments.records
            )
            architecture = device.architecture
            made_for = f", made for {device.name} ({architecture})"
    written = kernels.export_kernels(chosen, arguments.out, architecture)
    if arguments.json:
        print_json([str(path) for path in written])
    else:
        wrote = f"wrote {counted(len(chosen), 'kernel')} to {arguments.out}"
        print(f"{wrote}{made_for}: {written[0]} lists them")
    return 0


def _recorded(arguments: Namespace) -> list[kernels.RankedKernel]:
    """Return the kernels of record files that the options choose."""
    files = chosen_files(arguments)
    for file in files:
        name = file.workload.name  # exported folders are named after it
        same = [other for other in files if other.workload.name == name]
        if any(other.workload != file.workload for other in same):
            raise InputError(
                f"There are records for several workloads called {name}: remove the outdated file, "
                "or name another folder with --records."
            )
        only_set(same, name)
    ranks = "all" if arguments.kernels is None else arguments.kernels
    chosen = [(file, tuning.choose_ranks(ranks, file.ranks)) for file in files]
    return [
        kernels.RankedKernel(file.workload, rank, kernel)
        for file, ranks in chosen
        for rank, kernel in zip(ranks, tuners.kernels_of(file, ranks), strict=True)
    ]


def _add_sample(actions: Subparsers) -> None:
    """Add ``sample``."""
    parser = add_command(
        actions,
        "sample",
        _sample,
        summary="Choose the trials that represent a whole search",
        description="Reads a database of TVM's MetaSchedule or a log of its former auto-scheduler "
        "(Ansor), plain or compressed (.gz, .xz), or all logs in a folder. A fifth of the chosen "
        "trials are the fastest; the others are nearest to the 10th, 25th, 50th and 75th "
        "percentile of time.",
        example="""
gpuenergy kernels sample tuned/case5/raw --performance performance/case5.json
gpuenergy kernels sample cuda_resnet_testCase_3_conv2d.json --shape 1,56,56,64,64,3,3,1,1
gpuenergy kernels sample tuningrecords --performance performance --filtered filtered
""",
    )
    parser.add_argument(
        "log",
        metavar="LOG",
        type=path_argument,
        help="Log, folder of a MetaSchedule database, or folder of logs",
    )
    parser.add_argument(
        "--keep", metavar="N", type=count, default=25, help="Trials to choose (default: 25)"
    )
    parser.add_argument(
        "--shape",
        metavar="[KIND:]SIZES",
        help="The workload, as for gpuenergy tune, if the log does not contain its sizes",
    )
    parser.add_argument(
        "--performance",
        metavar="PATH",
        type=path_argument,
        help="Write the GFLOP/s of the chosen trials, one integer per line, the fastest first; "
        "for several logs, PATH is a folder of such files",
    )
    parser.add_argument(
        "--filtered",
        metavar="DIR",
        type=path_argument,
        help="Write logs with only the chosen trials to this folder, the fastest first",
    )
    parser.add_argument("--json", action="store_true", help="Print JSON")


def _sample(arguments: Namespace) -> int:
    """Choose trials, write and print them; 1 if some of several logs cannot be used."""
    log: Path = arguments.log
    several = is_folder(log) and not tuners.is_database(log)
    if several and arguments.shape is not None:
        raise InputError(f"--shape is for one log, and {log} is a folder: name a log in it.")
    logs = tuners.logs_in(log) if several else [log]
    outcomes: list[dict[str, object]] = []
    for path in logs:
        performance = arguments.performance
        if several and performance is not None:
            performance = performance / f"{Path(tuners.plain_name(path)).stem}.json"
        try:
            search, chosen = _sample_log(path, arguments, performance)
        except InputError as error:
            if not several:
                raise
            tell(f"{path.name}: not sampled: {error}")
            continue
        outcomes.append(
            {
                "log": str(search.path),
                "tuner": search.tuner,
                "flops": search.flops,
                "trials": {"total": search.total, "failed": search.total - len(search.trials)},
                "asked": arguments.keep,
                "representatives": [asdict(pick) for pick in chosen],
            }
        )
        if not arguments.json:
            if several:
                print(f"{path.name}:")
            _print_sampled(search, chosen, arguments.keep)
    if not outcomes:
        raise InputError(
            f"None of the {len(logs)} logs in {log} can be used, for the reasons above."
        )
    if arguments.json:
        print_json(outcomes if several else outcomes[0])
    return 0 if len(outcomes) == len(logs) else 1


def _sample_log(
    log: Path, arguments: Namespace, performance: Path | None
) -> tuple[tuners.LoggedSearch, list[tuners.Sampled]]:
    """Choose trials from one log, and write the files that the options name."""
    shape = None if arguments.shape is None else workloads.parse_shape(arguments.shape)
    search = tuners.load_search(log, shape)
    chosen = tuners.sample(search, arguments.keep)
    if arguments.filtered is not None:
        tuners.write_filtered(log, search, chosen, arguments.filtered)
    if performance is not None:
        figures = [pick.gflops for pick in chosen if pick.gflops is not None]
        if len(figures) < len(chosen):
            raise InputError(
                f"{search.path} does not contain the sizes of its workload, without which there "
                "are no GFLOP/s: give them with --shape."
            )
        tuning.write_performance(performance, figures)
    return search, chosen


def _print_sampled(search: tuners.LoggedSearch, chosen: list[tuners.Sampled], keep: int) -> None:
    rows = [
        (
            str(pick.line),
            pick.band,
            reports.time(pick.time_ms),
            "-" if pick.gflops is None else f"{pick.gflops:.0f}",
        )
        for pick in chosen
    ]
    print_table(("line", "band", "time", "GFLOP/s"), rows)
    ran = len(search.trials)
    print(f"{len(chosen)} of {ran} trials that ran; {search.total - ran} of {search.total} failed")
    if len(chosen) < keep:
        print(f"fewer than the {keep} requested: no other schedules ran")
    if search.flops is None:
        print("no GFLOP/s: the log does not contain the workload's sizes, give them with --shape")
