"""``gpuenergy kernels sample``: the trials that represent a search, from its log."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuenergy.commands.command_line import (
    Subparsers,
    add_command,
    print_json,
    print_table,
    tell,
)
from pytest_gpuenergy.support import InputError

if TYPE_CHECKING:
    from pytest_gpuenergy.tvm import Sampled, Search


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
        type=Path,
        help="Log, folder of a MetaSchedule database, or folder of logs",
    )
    parser.add_argument(
        "--keep", metavar="N", type=_positive, default=25, help="Trials to choose (default: 25)"
    )
    parser.add_argument(
        "--shape",
        metavar="[KIND:]SIZES",
        help="The workload, as for gpuenergy tune, if the log does not contain its sizes",
    )
    parser.add_argument(
        "--performance",
        metavar="PATH",
        type=Path,
        help="Write their GFLOP/s as one integer per line, the fastest first; of several logs, to "
        "files in this folder",
    )
    parser.add_argument(
        "--filtered",
        metavar="DIR",
        type=Path,
        help="Write logs with only the chosen trials to this folder, the fastest first",
    )
    parser.add_argument("--json", action="store_true", help="Print JSON")


@dataclass(frozen=True)
class _Sampling:
    """What was chosen from a log."""

    log: Path
    search: Search
    chosen: list[Sampled]


def _sample(arguments: Namespace) -> int:
    """Choose, write, print; 1 if some of several logs cannot be used."""
    from pytest_gpuenergy.support import is_folder
    from pytest_gpuenergy.tvm import is_database, logs_in

    log: Path = arguments.log
    if not is_folder(log) or is_database(log):
        outcome = _sample_log(log, arguments, arguments.performance)
        if arguments.json:
            print_json(_sampled_json(outcome.search, outcome.chosen, arguments.keep))
        else:
            _print_sampled(outcome.search, outcome.chosen, arguments.keep)
        return 0
    if arguments.shape is not None:
        raise InputError(f"--shape is for one log, and {log} is a folder: name a log in it.")
    return _sample_all(logs_in(log), arguments)


def _sample_all(logs: Sequence[Path], arguments: Namespace) -> int:
    """Sample each log, whether or not others can be used."""
    from pytest_gpuenergy.tvm import plain_name

    outcomes: list[_Sampling] = []
    for log in logs:
        folder = arguments.performance
        try:
            performance = None if folder is None else folder / f"{Path(plain_name(log)).stem}.json"
            outcome = _sample_log(log, arguments, performance)
        except InputError as error:
            tell(f"{log.name}: not sampled: {error}")
            continue
        outcomes.append(outcome)
        if not arguments.json:
            print(f"{log.name}:")
            _print_sampled(outcome.search, outcome.chosen, arguments.keep)
    if not outcomes:
        raise InputError(
            f"None of the {len(logs)} logs in {arguments.log} can be used, for the reasons above."
        )
    if arguments.json:
        print_json([_sampled_json(one.search, one.chosen, arguments.keep) for one in outcomes])
    return 0 if len(outcomes) == len(logs) else 1


def _sample_log(log: Path, arguments: Namespace, performance: Path | None) -> _Sampling:
    """Choose from one log, and write what was asked for.

    Raises:
        InputError: it cannot be used, or a file cannot be written.
    """
    from pytest_gpuenergy.tuning import write_performance
    from pytest_gpuenergy.tvm import load_search, sample, write_filtered
    from pytest_gpuenergy.workloads import parse_shape

    shape = None if arguments.shape is None else parse_shape(arguments.shape)
    search = load_search(log, shape)
    chosen = sample(search, arguments.keep)
    if arguments.filtered is not None:
        write_filtered(log, search, chosen, arguments.filtered)
    if performance is not None:
        figures = [pick.gflops for pick in chosen if pick.gflops is not None]
        if len(figures) < len(chosen):
            raise InputError(
                f"{search.path} does not contain the sizes of its workload, without which there "
                "are no GFLOP/s: give them with --shape."
            )
        write_performance(performance, figures)
    return _Sampling(log, search, chosen)


def _print_sampled(search: Search, chosen: list[Sampled], keep: int) -> None:
    from pytest_gpuenergy.report import time

    print_table(
        ("line", "band", "time", "GFLOP/s"),
        [
            (
                str(pick.line),
                pick.band,
                time(pick.time_ms),
                "-" if pick.gflops is None else f"{pick.gflops:.0f}",
            )
            for pick in chosen
        ],
    )
    ran = len(search.trials)
    print(f"{len(chosen)} of {ran} trials that ran; {search.total - ran} of {search.total} failed")
    if len(chosen) < keep:
        print(f"fewer than the {keep} requested: no other schedules ran")
    if search.flops is None:
        print("no GFLOP/s: the log does not contain the workload's sizes, give them with --shape")


def _sampled_json(search: Search, chosen: list[Sampled], keep: int) -> dict[str, object]:
    return {
        "log": str(search.path),
        "tuner": search.tuner,
        "flops": search.flops,
        "trials": {"total": search.total, "failed": search.total - len(search.trials)},
        "asked": keep,
        "representatives": [asdict(pick) for pick in chosen],
    }


def _positive(word: str) -> int:
    if not (word.isascii() and word.isdecimal() and 0 < len(word) < 10 and int(word)):
        raise ArgumentTypeError(f"{word!r} is not a positive integer")
    return int(word)
