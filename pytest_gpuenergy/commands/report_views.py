"""The part of ``gpuenergy report`` that makes its views: texts, the page, files and the summary."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuenergy.commands import report_searches
from pytest_gpuenergy.commands.command_line import print_lines, stdout_width, write_text
from pytest_gpuenergy.commands.runs import find_runs, load_runs, runs_of_project
from pytest_gpuenergy.support import emulated_mark, wrapped

if TYPE_CHECKING:
    from pytest_gpuenergy.report import Report
    from pytest_gpuenergy.search import SearchRecord


TEXTS = {
    "json": "the JSON report",
    "tidy": "one CSV table with a row per measurement and a column per field",
    "md": "Markdown, as for the summary of a CI job",
    "html": "one HTML page with charts that works offline",
    "bencher": "Bencher Metric Format",
    "gha": "what github-action-benchmark's customSmallerIsBetter reads",
}
"""Options that take a path, and what each writes there."""


def write_views(
    report: Report,
    runs: Sequence[Report],
    searches: Sequence[SearchRecord],
    arguments: Namespace,
) -> None:
    """Write each view whose option is given.

    Args:
        report: what the views show.
        runs: that it is made from.
        searches: that the page shows, too.
        arguments: of the command.

    Raises:
        ReportError: one cannot be written.
    """
    for name in TEXTS:
        if (target := getattr(arguments, name)) is None:
            continue
        if name == "html":
            text = _page(report, runs, searches, arguments)
        else:
            text = _text(name, report, calibrated=arguments.calibrated)
        write_text(text, target)
    if arguments.csv is not None:
        from pytest_gpuenergy.report import write_classic_csv

        write_classic_csv(report, arguments.csv)
    if arguments.best_perf is not None:
        from pytest_gpuenergy.report import write_best_perf

        write_best_perf(report, arguments.best_perf)
    if arguments.parquet is not None:
        from pytest_gpuenergy.report import write_parquet

        write_parquet(report, arguments.parquet)


def _text(name: str, report: Report, *, calibrated: bool) -> str:
    """The view that the option ``name`` asks for; the page is `_page`."""
    from pytest_gpuenergy.report import (
        bencher_json,
        calibrated_report,
        github_action_json,
        json_document,
        markdown,
        tidy_csv,
    )

    if name == "md":
        return markdown(calibrated_report(report) if calibrated else report, calibrated=calibrated)
    views = {
        "json": json_document,
        "tidy": tidy_csv,
        "bencher": bencher_json,
        "gha": github_action_json,
    }
    return views[name](report)


def _page(
    report: Report,
    runs: Sequence[Report],
    searches: Sequence[SearchRecord],
    arguments: Namespace,
) -> str:
    """The HTML page, with the verdicts on a baseline and the trend over earlier runs, if named."""
    from pytest_gpuenergy.gate import GateSettings, page_verdicts, trend_values
    from pytest_gpuenergy.report import html_page

    baseline = verdicts = trend = None
    if arguments.baseline is not None:
        (baseline,) = load_runs(find_runs([arguments.baseline]))
        verdicts = page_verdicts(baseline, report, GateSettings())
    if arguments.trend is not None:
        earlier = arguments.trend and load_runs(find_runs(arguments.trend))
        by_id = {one.run.run_id: one for one in [*(earlier or runs_of_project(Path.cwd())), *runs]}
        trend = trend_values(by_id.values())
    graphs = report_searches.values(searches)
    return html_page(report, baseline, verdicts=verdicts, trend=trend, searches=graphs)


def print_summary(report: Report, sort: str, *, calibrated: bool) -> None:
    """Print the tables of a report, by GPU model, and what can be said of its boards."""
    from pytest_gpuenergy.report import (
        best_lines,
        board_lines,
        by_model,
        calibrated_report,
        calibration_lines,
        summary,
    )

    report = calibrated_report(report) if calibrated else report
    emulated = report.run.emulated
    width = stdout_width()
    for part in by_model(report):
        rows, run = part.measurements, part.run
        heading = f"{run.gpu_name}{emulated_mark(emulated)}, run {run.run_id}"
        print_lines(wrapped(heading, width))
        tables = summary(
            rows,
            emulated=emulated,
            width=width,
            sort=sort,
            gpu_name=run.gpu_name,
            calibrated=calibrated,
        )
        print_lines(tables)
        print_lines(best_lines(rows, emulated=emulated, width=width, calibrated=calibrated))
    for line in [*board_lines(report), *(calibration_lines(report) if calibrated else ())]:
        print_lines(wrapped(line, width, whole_words=True))
