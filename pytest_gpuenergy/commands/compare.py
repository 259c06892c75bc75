"""``gpuenergy compare``: judges a run by an earlier one."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from pytest_gpuenergy import gate, report as reports
from pytest_gpuenergy.commands.command_line import (
    Subparsers,
    add_command,
    add_output_arguments,
    tell,
    write_outcome,
)
from pytest_gpuenergy.commands.runs import check_outputs, find_runs


def add_parser(subparsers: Subparsers, summary: str) -> None:
    """Add ``compare``."""
    parser = add_command(
        subparsers,
        "compare",
        run,
        summary=summary,
        description="A kernel is worse, or better, when the whole interval of its change lies "
        "beyond the limit. Both runs must be of the same GPU model.",
        example="""
gpuenergy compare baseline.json
gpuenergy compare baseline.json .gpuenergy/runs/20261121T120623-cedcdd --fail edp:5% --fail time:3%
gpuenergy compare old.json new.json --fail edp:5% --md - >> "$GITHUB_STEP_SUMMARY"
""",
    )
    parser.add_argument(
        "base", metavar="BASE", help="Earlier run: its folder, its id, or a JSON report"
    )
    parser.add_argument(
        "new",
        metavar="NEW",
        nargs="?",
        help="Later run, in the same forms (default: this project's latest run)",
    )
    add_gate_arguments(parser)
    parser.add_argument(
        "--session-sd",
        metavar="LIST",
        default="",
        help="Standard deviation between sessions (default, on the same board: "
        "time:0.17%%,energy:0.44%%,edp:0.54%%)",
    )
    parser.add_argument(
        "--allow",
        metavar="LIST",
        default="",
        help="Differences that do not put every verdict in doubt: board, driver",
    )


def add_gate_arguments(parser: ArgumentParser) -> None:
    """Add the options that ``compare`` and ``ab`` share: limits, and where to write the outcome."""
    parser.add_argument(
        "--fail",
        metavar="METRIC:PERCENT",
        action="append",
        default=[],
        help="Judge this metric (time, energy, edp) and fail if it is worse by more than this, "
        "such as edp:5%%; may be repeated (default: judge all at 5%%, fail none)",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="Also fail if a verdict is AMBIGUOUS or a kernel is missing on either side",
    )
    add_output_arguments(parser)


def run(arguments: Namespace) -> int:
    """Compare two runs, and write or print the outcome; 1 if the gate fails."""
    settings = gate.GateSettings.parse(
        arguments.fail,
        session_sd=arguments.session_sd,
        allow=arguments.allow,
        strict=arguments.strict,
    )
    outputs = {"json": arguments.json, "md": arguments.md}
    check_outputs(outputs, [arguments.base, arguments.new])
    (base,) = find_runs([arguments.base])
    (new,) = find_runs([arguments.new] if arguments.new else [])
    comparison = gate.compare(reports.load_report(base), reports.load_report(new), settings)
    write_comparison(comparison, arguments)
    if comparison.base.run_id == comparison.new.run_id:
        tell(f"Run {comparison.new.run_id} was compared with itself: name an earlier one as BASE.")
    return 0 if comparison.passed else 1


def write_comparison(comparison: gate.Comparison, arguments: Namespace) -> None:
    """Write a comparison where the arguments say; in GitHub Actions, also print annotations.

    Raises:
        ReportError: a file cannot be written.
    """
    write_outcome(arguments, comparison, gate.terminal, gate.json_document, gate.markdown)
    if gate.in_github_actions():
        for line in gate.annotate(comparison):
            print(line, file=sys.stderr)
