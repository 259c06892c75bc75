"""``gpuenergy advise``: the setpoint and the kernels that are best, from measured runs."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuenergy.commands.command_line import (
    Subparsers,
    add_command,
    add_output_arguments,
    write_outcome,
)
from pytest_gpuenergy.commands.kernel_records import add_choice
from pytest_gpuenergy.record import METRICS, Metric
from pytest_gpuenergy.support import InputError, ReportInputError

if TYPE_CHECKING:
    from pytest_gpuenergy.advice import Goal
    from pytest_gpuenergy.report import Report

_MAX_TIMES = 1e9
"""The largest weight, to refuse typing errors."""


def add_parser(subparsers: Subparsers) -> None:
    """Add ``advise``."""
    parser = add_command(
        subparsers,
        "advise",
        run,
        summary="Advise which power limit, clock and kernels are best for measured workloads",
        description="The workloads that are chosen, by default all of the report, run one after "
        "another at one setpoint: the EDP that is least is that of their sums. Each is advised by "
        "itself too. Flagged and failed measurements are left out.",
        example="""
gpuenergy advise
gpuenergy advise sweep.json --network resnet --weights resnet03=3,resnet06=4
gpuenergy advise .gpuenergy/runs/* --case case5 --slower-by 5%
gpuenergy advise sweep.json --slower-by 5% --baseline 700W --json -
""",
    )
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="*",
        help="Run folder, run id of this project, or JSON report; several are merged (default: "
        "this project's latest run)",
    )
    add_choice(parser, "Workloads")
    parser.add_argument(
        "--objective",
        choices=[*map(str, METRICS)],
        help="What shall be least (default: edp, or energy with --slower-by)",
    )
    parser.add_argument(
        "--slower-by",
        metavar="PERCENT",
        help="The least energy that takes at most so much more time than the fastest kernels at "
        "the baseline, such as 5%%",
    )
    parser.add_argument(
        "--weights",
        metavar="NAME=TIMES[,...]",
        action="append",
        default=[],
        help="How often a workload runs, such as a layer in a network; may be repeated (default: "
        "each once)",
    )
    parser.add_argument(
        "--baseline",
        metavar="SETPOINT",
        help="What savings are relative to, such as 700W (default: current, otherwise the highest "
        "power limit, without a locked clock)",
    )
    parser.add_argument(
        "--gpu", metavar="NAME", help="Only measurements on this GPU model, of several"
    )
    add_output_arguments(parser)


def run(arguments: Namespace) -> int:
    """Choose, then write or print the advice; 1 if no setpoint has all workloads."""
    from pytest_gpuenergy.advice import advise_on, json_document, markdown, terminal
    from pytest_gpuenergy.commands.runs import check_outputs
    from pytest_gpuenergy.workloads import network, split_words

    goal = _goal(arguments)
    weights = _weights(arguments.weights)
    check_outputs({"json": arguments.json, "md": arguments.md}, arguments.runs)
    report = _chosen(arguments)
    expected = [
        workload.name
        for word in split_words(arguments.network)
        for workload in network(word, Path.cwd())
    ]
    outcome = advise_on(
        report, goal, weights=weights, baseline=arguments.baseline, expected=expected
    )
    write_outcome(arguments, outcome, terminal, json_document, markdown)
    return 0 if outcome.whole is not None else 1


def _chosen(arguments: Namespace) -> Report:
    """Merge the runs, and keep the GPU model and the workloads that are named."""
    from msgspec.structs import replace

    from pytest_gpuenergy.advice import select_model, single_model
    from pytest_gpuenergy.commands.runs import find_runs, select
    from pytest_gpuenergy.report import load_report, merge

    reports = [load_report(path) for path in find_runs(arguments.runs)]
    if arguments.gpu is not None:
        reports = select_model(reports, arguments.gpu)
    try:
        report = merge(reports)
    except ReportInputError:
        single_model(*reports)  # its error says what to do
        raise
    chosen = select(report.measurements, arguments.case, arguments.network, Path.cwd())
    return replace(report, measurements=chosen)


def _goal(arguments: Namespace) -> Goal:
    from pytest_gpuenergy.advice import Goal
    from pytest_gpuenergy.gate import parse_percent

    if arguments.slower_by is None:
        return Goal(Metric(arguments.objective or Metric.EDP))
    if arguments.objective not in (None, str(Metric.ENERGY)):
        raise InputError(
            f"--slower-by limits the time of the least energy: leave out --objective "
            f"{arguments.objective}."
        )
    return Goal(Metric.ENERGY, parse_percent(arguments.slower_by, "--slower-by"))


def _weights(texts: Sequence[str]) -> dict[str, float]:
    from pytest_gpuenergy.workloads import split_words

    counts: dict[str, float] = {}
    if texts and not split_words(texts):
        raise InputError("--weights is empty: give names with numbers, or leave it out.")
    for word in split_words(texts):
        name, _, times = word.rpartition("=")
        try:
            value = float(times)
        except ValueError:
            value = math.nan
        if not name or not 0 < value <= _MAX_TIMES:
            raise InputError(
                f"--weights {word[:60]!r} is not understood: give a workload and how often it "
                "runs, such as resnet03=3."
            )
        if name in counts:
            raise InputError(f"--weights names {name!r} twice: give each workload once.")
        counts[name] = value
    return counts
