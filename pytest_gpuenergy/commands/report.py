"""``gpuenergy report``: merges runs and writes views of them."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuenergy.commands import Subparsers, add_command
from pytest_gpuenergy.errors import InputError

if TYPE_CHECKING:
    from pytest_gpuenergy.report.store import Report


def add_parser(subparsers: Subparsers) -> None:
    """Add ``report``."""
    parser = add_command(
        subparsers,
        "report",
        run,
        summary="Merge runs and write them as JSON, CSV or Markdown",
        description="Runs on the same GPU are merged; of an item measured twice, the later "
        "measurement counts. Without an output, the summary is printed.",
        example="""
gpuenergy report
gpuenergy report .gpuenergy/runs/* --json sweep.json --csv results --md sweep.md
gpuenergy report nightly.json --json -
gpuenergy report kernel_outputs --gpu "NVIDIA A100" --csv results
""",
    )
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="*",
        help="Run folder, run id of this project, JSON report, or folder of an older tool's text "
        "outputs (default: this project's latest run)",
    )
    parser.add_argument(
        "--gpu", metavar="NAME", help="GPU that an older tool's outputs are of (default: unknown)"
    )
    parser.add_argument("--json", metavar="PATH", help="Write the JSON report; - for the terminal")
    parser.add_argument("--csv", metavar="DIR", type=Path, help="Write the classic CSV tree")
    parser.add_argument("--md", metavar="PATH", help="Write Markdown tables; - for the terminal")


def run(arguments: Namespace) -> int:
    """Merge, write, print; 1 when a run cannot be read or a view cannot be written."""
    from pytest_gpuenergy.report.store import merge
    from pytest_gpuenergy.report.tables import summary
    from pytest_gpuenergy.report.views import (
        json_document,
        markdown,
        write_classic_csv,
        write_json,
        write_markdown,
    )

    report = merge(_load(find_runs(arguments.runs), arguments.gpu))
    _write(report, arguments.json, json_document, write_json)
    _write(report, arguments.md, lambda found: markdown(found) + "\n", write_markdown)
    if arguments.csv is not None:
        write_classic_csv(report, arguments.csv)
    if arguments.json is None and arguments.md is None and arguments.csv is None:
        label = " (emulated)" if report.run.emulated else ""
        print(f"{report.run.gpu_name}{label}, run {report.run.run_id}")
        for line in summary(report.measurements, emulated=report.run.emulated):
            print(line)
        if not report.measurements:
            print("nothing was measured")
    return 0


def _load(paths: list[Path], gpu: str | None) -> list[Report]:
    from pytest_gpuenergy.report.legacy import is_legacy, load_legacy
    from pytest_gpuenergy.report.store import load_report

    reports = [load_legacy(path, gpu) if is_legacy(path) else load_report(path) for path in paths]
    if gpu is not None and not all(report.run.gpu_name == gpu for report in reports):
        raise InputError(
            "--gpu names the GPU of an older tool's outputs, and the runs tell their own: "
            "leave it out."
        )
    for report in reports:
        if report.run.legacy and (errors := [m.error for m in report.measurements if m.error]):
            total = len(report.measurements)
            print(f"{len(errors)} of {total} outputs have no figures: {errors[0]}", file=sys.stderr)
    return reports


def _write(
    report: Report,
    target: str | None,
    text: Callable[[Report], str],
    write: Callable[[Report, Path], None],
) -> None:
    if target == "-":
        print(text(report), end="")
    elif target is not None:
        write(report, Path(target))


def find_runs(runs: list[str]) -> list[Path]:
    """Paths of runs that are named by path or by id; without a name, this project's latest.

    Raises:
        InputError: there is no latest run.
    """
    from pytest_gpuenergy.report.store import HOME, find_run, latest_run

    if runs:
        return [find_run(Path(run), Path()) for run in runs]
    latest = latest_run(Path.cwd())
    if latest is None:
        raise InputError(
            f"There is no run under {Path.cwd() / HOME}: run pytest first, or name a run."
        )
    return [latest.path]
