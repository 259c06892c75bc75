"""``gpuenergy ab``: two revisions of the kernels, measured alternately on the same GPU."""

from __future__ import annotations

import math
from argparse import Namespace
from pathlib import Path

from pytest_gpuenergy import ab, control, engine, gate, report as reports
from pytest_gpuenergy.commands.command_line import (
    Subparsers,
    add_command,
    add_setpoint_options,
    number,
    tell,
)
from pytest_gpuenergy.commands.compare import add_gate_arguments, write_comparison
from pytest_gpuenergy.commands.runs import check_outputs
from pytest_gpuenergy.opening import check_spec
from pytest_gpuenergy.support import GpuEnergyError, disk_folder, interrupt_once, worktree

ROUNDS = 16
_TIMEOUT_S = 60.0
"""Time after which a kernel counts as hung, as pytest's default."""


def add_parser(subparsers: Subparsers, summary: str) -> None:
    """Add ``ab``."""
    parser = add_command(
        subparsers,
        "ab",
        run,
        summary=summary,
        description="pytest verifies the kernels of both revisions in git worktrees, without "
        "measuring them. Then each pair of kernels is measured alternately in one session until "
        "its verdicts are clear, so differences between machines, boards and hours cancel. "
        "Kernels that are the same in both are not measured. Both revisions must have energy "
        "items, that is, tests that pass a kernel to energy_benchmark: name the folder or file of "
        "the bench unless pytest finds it by itself.",
        example="""
gpuenergy ab main HEAD bench -k case1 --powercap 3
gpuenergy ab v1.2 HEAD bench/test_scale.py --fail edp:1% --rounds 10
""",
    )
    parser.add_argument("base", metavar="BASE_REV", help="The earlier revision, as git names it")
    parser.add_argument("head", metavar="HEAD_REV", help="The later revision")
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="*",
        help="Folders, files or ids of tests, as for pytest, such as bench",
    )
    parser.add_argument(
        "-k", metavar="EXPRESSION", dest="keyword", help="Select items by -k of pytest"
    )
    parser.add_argument(
        "--rounds",
        metavar="N",
        type=number(int, 2, 1000),
        default=ROUNDS,
        help="The most times that each revision is measured; a kernel's rounds end as soon as its "
        f"verdicts are clear (default: {ROUNDS})",
    )
    parser.add_argument(
        "--precision",
        metavar="PERCENT",
        help="Also continue until every interval is at most this wide on each side, such as 0.5%%",
    )
    add_setpoint_options(parser, current=False)
    parser.add_argument(
        "--gpu-device",
        metavar="DEVICE",
        default="auto",
        help="GPU to use, as --gpu-device of pytest (default: auto)",
    )
    add_gate_arguments(parser)


def run(arguments: Namespace) -> int:
    """Export the kernels of both revisions, measure and judge them; 1 if the gate fails."""
    settings = gate.GateSettings.parse(arguments.fail, strict=arguments.strict)
    precision = math.inf
    if arguments.precision is not None:
        precision = gate.parse_percent(arguments.precision, "--precision")
    check_spec(arguments.gpu_device)
    if arguments.powercap is not None:
        control.cap_words(arguments.powercap)
    control.clock_words(arguments.smclock)
    check_outputs({"json": arguments.json, "md": arguments.md})
    here = Path.cwd()
    commits = {name: ab.resolve_commit(here, getattr(arguments, name)) for name in ("base", "head")}
    with interrupt_once(), disk_folder() as scratch:
        sides = []
        for name, commit in commits.items():
            title = f"{getattr(arguments, name)} ({commit[:12]})"
            tell(f"{title}: verifying")
            target = scratch / name
            with worktree(here, commit, scratch / f"{name}-tree") as folder:
                ab.check_paths(folder, arguments.paths, title)
                done = ab.run_pytest(folder, _pytest_arguments(arguments, target), title)
            sides.append(ab.load_side(target, title, done))
        ab.check_sides(*sides)
        comparison = _compare(
            arguments, settings, precision, commits, *(side.exhibits for side in sides)
        )
    write_comparison(comparison, arguments)
    if comparison.interrupted:
        raise KeyboardInterrupt
    return 0 if comparison.passed else 1


def _pytest_arguments(arguments: Namespace, target: Path) -> list[str]:
    words = ["--gpuenergy-export", str(target), "--gpu-device", arguments.gpu_device]
    keyword = None if arguments.keyword is None else _item_names(arguments.keyword)
    clocks = None if arguments.smclock == control.CURRENT_CLOCKS else arguments.smclock
    options = (("-k", keyword), ("--powercap", arguments.powercap), ("--smclock", clocks))
    for option, value in options:
        words += [option, value] if value is not None else []
    return [*words, *arguments.paths]


def _item_names(expression: str) -> str:
    """Replace ids in the expression by the names of their items.

    An id stands for an item of the latest run, which the worktrees do not have.
    """
    try:
        run = reports.latest_run(Path.cwd())
        return (
            expression
            if run is None
            else reports.with_item_names(expression, run.load().measurements)
        )
    except GpuEnergyError:
        return expression  # the run is damaged


def _compare(
    arguments: Namespace,
    settings: gate.GateSettings,
    precision: float,
    commits: dict[str, str],
    base: tuple[ab.Exhibit, ...],
    head: tuple[ab.Exhibit, ...],
) -> gate.Comparison:
    allowed = arguments.allow == "clocks"
    with engine.open_station(arguments.gpu_device, allow_clocks=allowed) as station:
        for sentence in station.restored:
            tell(sentence)
        runs = [
            engine.run_info(station.device, getattr(arguments, name), {}, git_revision=commit)
            for name, commit in commits.items()
        ]
        return ab.compare_pairs(
            station,
            (runs[0], base),
            (runs[1], head),
            settings,
            rounds=arguments.rounds,
            timeout_s=_TIMEOUT_S,
            tell=tell,
            precision=precision,
        )
