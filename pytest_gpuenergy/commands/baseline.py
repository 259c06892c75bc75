"""``gpuenergy baseline update``: makes a run the baseline that later runs are judged by."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from pytest_gpuenergy import gate, report as reports
from pytest_gpuenergy.commands.command_line import (
    Subparsers,
    add_command,
    print_lines,
    stdout_width,
    target_argument,
)
from pytest_gpuenergy.commands.runs import find_runs
from pytest_gpuenergy.support import is_there

DEFAULT = "gpuenergy-baseline.json"


def add_parser(subparsers: Subparsers, summary: str) -> None:
    """Add ``baseline`` with ``update``."""
    parser = add_command(
        subparsers,
        "baseline",
        None,
        summary=summary,
        description="No other command changes a baseline.",
        example="gpuenergy baseline update",
    )
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)
    change = add_command(
        actions,
        "update",
        _update,
        summary="Add the unflagged measurements of a run to the baseline",
        description="Kernels that the run did not measure keep their figures in the baseline. A "
        "comparison of the new figures with the old ones is printed.",
        example="""
gpuenergy baseline update
gpuenergy baseline update .gpuenergy/runs/20261121T120623-cedcdd --to bench/h200.json
""",
    )
    change.add_argument(
        "source",
        metavar="RUN",
        nargs="?",
        help="Run folder, run id, or JSON report (default: this project's latest run)",
    )
    change.add_argument(
        "--to",
        metavar="PATH",
        type=target_argument,
        default=DEFAULT,
        help=f"File of the baseline (default: {DEFAULT})",
    )
    change.add_argument(
        "--replace", action="store_true", help="Start a new baseline, discarding the present one"
    )


def _update(arguments: Namespace) -> int:
    path = Path(arguments.to)
    (run,) = find_runs([arguments.source] if arguments.source else [])
    new = reports.load_report(run)
    with reports.updating(path):
        old = reports.load_report(path) if is_there(path) and not arguments.replace else None
        changed = gate.update(old, new)
        reports.write_json(changed.report, path)
    if old is not None:
        print_lines(gate.terminal(gate.compare(old, new, gate.GateSettings()), stdout_width()))
    print_lines(
        f"left out: {left.measurement.identity.label} ({left.why})" for left in changed.left_out
    )
    print(f"{path}: {len(changed.taken)} taken, {len(changed.kept)} kept")
    return 0
