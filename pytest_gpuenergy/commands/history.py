"""``gpuenergy history``: a metric over the runs of this project."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from pytest_gpuenergy import gate
from pytest_gpuenergy.commands.command_line import (
    Subparsers,
    add_command,
    add_output_arguments,
    count,
    write_outcome,
)
from pytest_gpuenergy.commands.runs import check_outputs, runs_of_project
from pytest_gpuenergy.record import METRICS, Metric
from pytest_gpuenergy.support import InputError


def add_parser(subparsers: Subparsers, summary: str) -> None:
    """Add ``history``."""
    parser = add_command(
        subparsers,
        "history",
        run,
        summary=summary,
        description="Reads the runs in .gpuenergy, each board separately. Flagged measurements are "
        "shown, but not used to find changes.",
        example="""
gpuenergy history -k case1
gpuenergy history -k "k01 300W" --metric energy --runs 20 --json -
""",
    )
    parser.add_argument(
        "-k",
        metavar="WORDS",
        dest="words",
        default="",
        help="Show only kernels whose label, such as case1-k01-300W, contains all these words "
        "(default: all)",
    )
    parser.add_argument(
        "--metric",
        choices=[*map(str, METRICS)],
        default="edp",
        help="Metric to show (default: edp)",
    )
    parser.add_argument(
        "--runs", metavar="N", type=count, help="Read only the latest N runs (default: all)"
    )
    add_output_arguments(parser)


def run(arguments: Namespace) -> int:
    """Read the runs, and print or write the history."""
    check_outputs({"json": arguments.json, "md": arguments.md})
    reports = sorted(runs_of_project(Path.cwd()), key=lambda report: report.run.started)
    if arguments.runs is not None:
        reports = reports[-arguments.runs :]
    found = gate.history(reports, Metric(arguments.metric), arguments.words.split())
    if not found:
        raise InputError(
            f"No run here has a measured kernel with {arguments.words!r} in its label: "
            "see gpuenergy report."
        )
    write_outcome(arguments, found, gate.history_text, gate.history_json, gate.history_markdown)
    return 0
