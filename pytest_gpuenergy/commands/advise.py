"""``gpuenergy advise``: the setpoint and the kernels that are best, from measured runs."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from pytest_gpuenergy import advice, gate, report as reports, workloads
from pytest_gpuenergy.commands.command_line import (
    Subparsers,
    add_command,
    add_output_arguments,
    write_outcome,
)
from pytest_gpuenergy.commands.kernel_records import add_choice
from pytest_gpuenergy.commands.runs import check_outputs, find_runs, select
from pytest_gpuenergy.record import METRICS, Metric
from pytest_gpuenergy.support import InputError, ReportInputError

_MAX_TIMES = 1e9
"""The largest weight, to refuse typing errors."""


def add_parser(subparsers: Subparsers, summary: str) -> None:
    """Add ``advise``."""
    parser = add_command(
        subparsers,
        "advise",
        run,
        summary=summary,
        description="The chosen workloads, by default all of the report, are assumed to run one "
        "after another at one setpoint; their EDP is the sum of their energies times the sum of "
        "their times. A setpoint for each workload alone is advised too. Flagged and failed "
        "measurements are left out, except those whose only flag is a wide interval. If workloads "
        "were measured in several modes, the modes are compared, and the best one that you accept "
        "is advised.",
        example="""
gpuenergy advise
gpuenergy advise sweep.json --network resnet --weights resnet03=3,resnet06=4
gpuenergy advise .gpuenergy/runs/* --case case5 --slower-by 5%
gpuenergy advise modes.json --network resnet --weights resnet50 --modes float32,3xtf32,tf32
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
        help="What to minimize (default: edp, or energy with --slower-by)",
    )
    parser.add_argument(
        "--slower-by",
        metavar="PERCENT",
        help="Minimize energy, taking at most this much more time than the fastest kernels at the "
        "baseline, such as 5%%",
    )
    parser.add_argument(
        "--modes",
        metavar="LIST",
        help="Modes that you accept: float32, 3xtf32, tf32, float16, bfloat16 (default: float32 "
        "and 3xtf32, whose error bounds are the same)",
    )
    parser.add_argument(
        "--accept-error",
        metavar="BOUND",
        help="Accept modes whose relative error is bounded by at most this, such as 1e-3",
    )
    parser.add_argument(
        "--weights",
        metavar="NAME=TIMES[,...]",
        action="append",
        default=[],
        help="Times that each workload runs, for example a layer in a network; resnet50 stands for "
        "the counts of ResNet-50's layers; may be repeated (default: each once)",
    )
    parser.add_argument(
        "--baseline",
        metavar="SETPOINT",
        help="Setpoint to compare with, such as 700W (default: current, otherwise the highest "
        "power limit, without a locked clock)",
    )
    parser.add_argument("--gpu", metavar="NAME", help="Use only measurements on this GPU model")
    add_output_arguments(parser)


def run(arguments: Namespace) -> int:
    """Choose, then write or print the advice; 1 if no setpoint, or mode, has all workloads."""
    from functools import partial

    goal = _goal(arguments)
    weights, accepted = _weights(arguments.weights), _accepted(arguments)
    check_outputs({"json": arguments.json, "md": arguments.md}, arguments.runs)
    layers = [
        workload
        for word in workloads.split_words(arguments.network)
        for workload in workloads.network(word, Path.cwd())
    ]
    names_layers = (
        word for word in workloads.split_words(arguments.weights) if word in workloads.OCCURRENCES
    )
    layers += [
        workloads.find_workload(name)
        for word in names_layers
        for name in workloads.OCCURRENCES[word]
    ]
    report = _chosen(arguments, layers)
    expected = list(dict.fromkeys(workload.name for workload in layers))
    measured = advice.measured_names(report.measurements)
    weights = {n: times for n, times in weights.items() if n in measured or n not in expected}
    modes = None
    # A network is named as in float32, also where it was measured in one other mode alone.
    in_mode = bool(expected) and {m.workload.name for m in report.measurements}.isdisjoint(expected)
    if _names_modes(arguments) or in_mode or advice.has_modes(report.measurements):
        modes = advice.compare_modes(
            report, accepted, goal, weights=weights, baseline=arguments.baseline
        )
        chosen = modes.best or next(row for row in modes.rows if not row.key.library)
        report = chosen.report
        names = {m.workload.name for m in report.measurements}
        weights = {name: times for name, times in weights.items() if name in names}
    outcome = advice.advise_on(
        report, goal, weights=weights, baseline=arguments.baseline, expected=expected
    )
    write_outcome(
        arguments,
        outcome,
        partial(advice.terminal, modes=modes),
        partial(advice.json_document, modes=modes),
        partial(advice.markdown, modes=modes),
    )
    is_complete = outcome.whole is not None and (modes is None or modes.best is not None)
    return 0 if is_complete else 1


def _chosen(arguments: Namespace, layers: Sequence[workloads.Workload]) -> reports.Report:
    """Merge the runs, and keep the GPU model and the workloads that are named.

    A layer of a named network that was not measured has the figures of a workload of its sizes.
    """
    from msgspec.structs import replace

    runs = [reports.load_report(path) for path in find_runs(arguments.runs)]
    if arguments.gpu is not None:
        runs = advice.select_model(runs, arguments.gpu)
    try:
        report = reports.merge(runs)
    except ReportInputError:
        advice.single_model(*runs)  # its error says what to do
        raise
    wanted = {} if arguments.case else {layer.name: layer.parameters for layer in layers}
    chosen = select(
        advice.named_after(report.measurements, wanted),
        arguments.case,
        arguments.network,
        Path.cwd(),
        in_all_modes=bool(layers) or _names_modes(arguments),
    )
    return replace(report, measurements=chosen)


def _names_modes(arguments: Namespace) -> bool:
    return arguments.modes is not None or arguments.accept_error is not None


def _accepted(arguments: Namespace) -> advice.Acceptance:
    modes = None
    if arguments.modes is not None:
        modes = tuple(map(str, workloads.parse_variants(arguments.modes, option="modes")["mode"]))
    error = arguments.accept_error
    if error is None:
        return advice.Acceptance(modes)
    try:
        value = float(error)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise InputError(
            f"--accept-error {error[:40]!r} is not understood: give the largest relative error, "
            "such as 1e-3."
        )
    return advice.Acceptance(modes, value)


def _goal(arguments: Namespace) -> advice.Goal:
    if arguments.slower_by is None:
        return advice.Goal(Metric(arguments.objective or Metric.EDP))
    if arguments.objective not in (None, str(Metric.ENERGY)):
        raise InputError(
            f"--slower-by limits the time of the least energy: leave out --objective "
            f"{arguments.objective}."
        )
    return advice.Goal(Metric.ENERGY, gate.parse_percent(arguments.slower_by, "--slower-by"))


def _weights(texts: Sequence[str]) -> dict[str, float]:
    counts: dict[str, float] = {}
    if texts and not workloads.split_words(texts):
        raise InputError("--weights is empty: give names with numbers, or leave it out.")
    words = [
        f"{name}={times}"
        for word in workloads.split_words(texts)
        if word in workloads.OCCURRENCES
        for name, times in workloads.OCCURRENCES[word].items()
    ]
    for word in [
        *words,
        *(word for word in workloads.split_words(texts) if word not in workloads.OCCURRENCES),
    ]:
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
