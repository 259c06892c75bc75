"""``gpuenergy replay``: whose joules the joules of a language model are."""

from __future__ import annotations

import os
from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuenergy.commands.command_line import (
    Subparsers,
    add_clock_options,
    add_command,
    count,
    named_setpoints,
    print_json,
    print_lines,
    tell,
)

if TYPE_CHECKING:
    from pytest_gpuenergy.replay import ReplayReport


def add_parser(subparsers: Subparsers) -> None:
    """Add ``replay``."""
    parser = add_command(
        subparsers,
        "replay",
        run,
        summary="Replay a profiled model's calls alone, and account for its energy",
        description="Makes each unique call of an operator again, alone and as a CUDA graph, with "
        "the arguments that it had in the model; measures its time and energy; measures the "
        "prefill and a decode step as wholes; and shows how far the sum accounts for them. Needs a "
        "real GPU and the extra replay; an emulated GPU replays the figures that a real one has "
        "recorded in RUN.",
        example="""
gpuenergy profile bloom-560m --out bloom/
gpuenergy replay bloom/
gpuenergy replay bloom/ --powercap 300W,500W,700W --resume
gpuenergy replay bloom/ --gpu-device emulated:h200 --powercap all
""",
    )
    parser.add_argument(
        "folder", metavar="RUN", type=Path, nargs="?", help="Folder of gpuenergy profile"
    )
    parser.add_argument(
        "--gpu-device",
        "--gpu",
        metavar="DEVICE",
        default="auto",
        help="auto, an index, a UUID, or emulated[:PROFILE] (default: auto)",
    )
    parser.add_argument(
        "--powercap",
        metavar="LIST",
        default="current",
        help="Power limits to measure everything under, as for pytest (default: current)",
    )
    add_clock_options(parser, several=True)
    parser.add_argument(
        "--cache",
        choices=("model", "hot", "cold"),
        default="model",
        help="what the L2 cache holds: model: what the model found there; hot: the tensors of one "
        "call; cold: nothing (default: model)",
    )
    parser.add_argument(
        "--export",
        metavar="FILE",
        default="",
        help="Replay from a file of gpuenergy profile --export, without the model's Python code",
    )
    parser.add_argument(
        "--step", metavar="N", type=int, default=1, help="The decode step to replay (default: 1)"
    )
    parser.add_argument(
        "--runs",
        metavar="N",
        type=count,
        default=0,
        help="Least launches of each call and each whole within its measurement (default: as many "
        "as the precision needs)",
    )
    parser.add_argument(
        "--kernels",
        metavar="LIST",
        type=_names,
        help="Ids of the calls or kernels to replay, separated by commas (default: all)",
    )
    parser.add_argument(
        "--resume", action="store_true", help="Keep what an earlier replay has measured"
    )
    parser.add_argument(
        "--power-log", metavar="PATH", type=Path, help="Write the card's power over time as CSV"
    )
    parser.add_argument(
        "--interval",
        metavar="S",
        type=_seconds,
        help="Seconds over which each row of --power-log is a mean (default: the card's samples)",
    )
    parser.add_argument("--html", metavar="PATH", type=Path, help="Write a page that works offline")
    parser.add_argument(
        "--schema", metavar="PATH", type=Path, help="Write the JSON Schema of --json; needs no run"
    )
    parser.add_argument("--json", action="store_true", help="Print the report as JSON")


def run(arguments: Namespace) -> int:
    """Replay, write the report, and print a summary; of several ranks, in as many processes."""
    from pytest_gpuenergy.opening import check_spec
    from pytest_gpuenergy.replay import (
        combined,
        device_word,
        is_rank,
        page_values,
        rank_folders,
        rank_of_process,
        read_profile,
        report_lines,
        run_ranks,
        schema_document,
        write_report,
    )
    from pytest_gpuenergy.report import Report, check_writable, write_html, write_view
    from pytest_gpuenergy.support import InputError, plain

    if arguments.schema is not None:
        write_view(arguments.schema, schema_document())
        if arguments.folder is None:
            return 0
    if arguments.interval is not None and arguments.power_log is None:
        raise InputError("--interval is for --power-log PATH: give that too.")
    if arguments.folder is None:
        raise InputError(
            "Name the folder that gpuenergy profile has written: gpuenergy replay RUN."
        )
    read_profile(arguments.folder)
    folders = rank_folders(arguments.folder)
    ranks = len(folders) or 1
    if ranks > 1 and arguments.runs:
        raise InputError(
            "--runs is for models on one GPU, since several launch what they exchange equally "
            "often: leave it out."
        )
    if arguments.html is not None:
        check_writable(arguments.html, folder=False)
    if ranks == 1:
        reports = _replayed(arguments, arguments.folder, (arguments.gpu_device, 0))
    elif check_spec(arguments.gpu_device) is not None:  # emulated GPUs need not wait for each other
        reports = [
            report
            for rank, folder in enumerate(folders)
            for report in _replayed(arguments, folder, (arguments.gpu_device, rank))
        ]
    elif not is_rank():
        device_word(arguments.gpu_device, 0, ranks)  # said once, if there are too few
        return run_ranks(arguments.command_line, ranks, arguments.folder)
    else:
        rank = rank_of_process(ranks)
        word = device_word(arguments.gpu_device, rank, ranks)
        reports = _replayed(arguments, folders[rank], word, ranks)
        if rank:
            return 0
    report = combined(reports)
    path = write_report(report, arguments.folder)
    if arguments.html is not None:
        write_html(
            Report(report.run, report.measurements), arguments.html, replay=page_values(report)
        )
    if arguments.json:
        print_json(plain(report))
    else:
        print_lines([*report_lines(report), "", f"written to {path}"])
    return 0


def _replayed(
    arguments: Namespace, folder: Path, word: tuple[str, int], count: int = 1
) -> list[ReplayReport]:
    """Replay one profile, or one rank's part of it.

    Args:
        arguments: of the command.
        folder: of the profile, or the rank.
        word: what `open_device` takes as ``spec`` and ``index``.
        count: of the ranks that replay their parts at the same time.

    Returns:
        The reports of all these ranks.
    """
    from pytest_gpuenergy.energy import PowerLog
    from pytest_gpuenergy.engine import Station
    from pytest_gpuenergy.opening import open_device
    from pytest_gpuenergy.replay import ALONE, Replay, joined, planner_for

    with ExitStack() as stack:
        stack.enter_context(_alone_in(folder))
        device = stack.enter_context(open_device(word[0], index=word[1]))
        ranks = ALONE
        if count > 1:
            ranks = stack.enter_context(joined(count, f"cuda:{getattr(device, 'ordinal', 0)}"))
        planner = planner_for(device, folder, arguments.cache, arguments.export, ranks)
        setpoints = named_setpoints(device, arguments)
        station = stack.enter_context(Station(device, allow_clocks=arguments.allow == "clocks"))
        for sentence in station.restored:
            tell(sentence)
        log = None
        own = folder.relative_to(arguments.folder)  # "." unless it is a rank's
        if arguments.power_log is not None:
            path = arguments.power_log
            path = path.with_stem("-".join(filter(None, (path.stem, own.name))))
            log = stack.enter_context(PowerLog(device, path, arguments.interval))

        def announce(line: str) -> None:
            tell(line)
            if log is not None:
                log.collect()

        replay = Replay(
            folder,
            station,
            planner,
            arguments.cache,
            arguments.step,
            arguments.kernels or (),
            setpoints,
            str(arguments.folder.name / own),
            arguments.runs,
            announce=announce,
            ranks=ranks,
        )
        if arguments.resume:
            replay.resume()
        return ranks.gathered(replay.run())


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Refuse to replay what another process replays, whose figures would be lost.

    Raises:
        InputError: another process does.
        OSError: the folder cannot be read.
    """
    from pytest_gpuenergy.support import InputError, lock

    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not lock(descriptor, wait=False):
            raise InputError(
                f"Another process is replaying {folder}: wait for it to end, or replay a copy."
            )
        yield
    finally:
        os.close(descriptor)


def _names(text: str) -> list[str]:
    found = [name.strip() for name in text.split(",") if name.strip()]
    if not found:
        raise ArgumentTypeError(f"{text!r} names no kernel")
    return found


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < 1e6:
        raise ArgumentTypeError(f"{text!r} is not a number of seconds above zero")
    return found
