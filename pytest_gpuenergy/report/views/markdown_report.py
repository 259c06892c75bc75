"""The report as Markdown, for the summary page of a CI job."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_gpuenergy.record import METRICS, UNLOCKED, Metric, clocks
from pytest_gpuenergy.report.analysis.best_kernels import best_of_each, near_front, pareto
from pytest_gpuenergy.report.analysis.board_calibration import Boards
from pytest_gpuenergy.report.analysis.gpu_models import by_model
from pytest_gpuenergy.report.analysis.subjects import group
from pytest_gpuenergy.report.store import Report
from pytest_gpuenergy.report.views.figures import (
    FIGURE_TABLE,
    markdown_lines,
    markdown_text,
    percent_range,
)
from pytest_gpuenergy.report.views.terminal_summary import (
    CLOCK_OVER_CAP,
    anchor_lines,
    board_lines,
    calibration_lines,
    least_words,
    savings_rows,
    short_uuid,
)
from pytest_gpuenergy.support import emulated_mark

_SHOWN = [
    FIGURE_TABLE[name] for name in ("time_us", "power_w", "energy_mj", "edp_mj_ms", "gflops_per_w")
]


def markdown(report: Report, *, calibrated: bool = False) -> str:
    """Return the run, the best of each workload, and a collapsed table per workload and setpoint.

    Kernels on the Pareto front are in bold, those that may be on it within noise in italics. Names
    and errors are escaped.

    Args:
        report: the report.
        calibrated: whether its figures are (`calibrated_report`), which the head then says.
    """
    lines: list[str] = []
    for part in by_model(report):
        lines += _head(part, calibrated=calibrated)
        lines += _best(part)
        lines += _tables(part)
    return "\n".join([*lines, *board_table(report)])


def _head(report: Report, *, calibrated: bool) -> Iterator[str]:
    run, rows = report.run, report.measurements
    measured = [m for m in rows if m.measured]
    flagged = sum(bool(m.validity) for m in measured)
    yield markdown_text(f"# {run.gpu_name}{emulated_mark(run.emulated)}, run {run.run_id}")
    yield ""
    yield (
        f"{len(measured)} of {len(rows)} items measured, {flagged} of them flagged. "
        f"Started {markdown_text(run.started or 'at an unknown time')} "
        f"on {markdown_text(run.host)}."
    )
    for line in (
        *anchor_lines(rows, report.anchors, emulated=run.emulated),
        *board_lines(report),
        *(calibration_lines(report) if calibrated else ()),
    ):
        yield f"{markdown_text(line)}  "
    yield ""


def _best(report: Report) -> Iterator[str]:
    best = best_of_each(report.measurements)
    if not best:
        yield from ("Nothing was measured.", "")
        return
    setpoint = "best cap" if clocks(report.measurements) == (UNLOCKED,) else "best setpoint"
    titles = ("workload", "least time", "least energy", "least EDP", setpoint, "Pareto front")
    rows = []
    for entry in best:
        cells = []
        for metric in METRICS:
            flagged = ", flagged" if entry.ties[metric].best.validity else ""
            cells.append(f"{least_words(entry, metric)} ({entry.where(metric)}{flagged})")
        rows.append(
            (
                entry.workload,
                *cells,
                entry.caps,
                entry.size_of_front,
            )
        )
    yield from markdown_lines(titles, rows, figures={5})
    yield ""
    if savings := savings_rows(best):
        names = (metric.label for metric in METRICS)
        yield from markdown_lines((CLOCK_OVER_CAP, *names), savings)
        yield ""


def _tables(report: Report) -> Iterator[str]:
    for (workload, cap), rows in group(report.measurements).items():
        marks = {id(m): "*" for m in near_front(rows)} | {id(m): "**" for m in pareto(rows)}
        yield f"<details><summary>{markdown_text(workload)}, {markdown_text(cap)}</summary>"
        yield ""
        titles = ["kernel", *(figure.title for figure in _SHOWN), "notes"]
        yield from markdown_lines(titles, (), figures={1, 2, 3, 4, 5})
        for m in rows:
            mark = marks.get(id(m), "")
            cells = [figure.shown(m) if m.measured else "" for figure in _SHOWN]
            notes = ", ".join(m.validity) if m.measured else m.why_no_figures
            line = f"| {mark}{markdown_text(m.kernel.label)}{mark} "
            line += "".join(f"| {cell} " if cell else "| " for cell in cells)
            yield f"{line}| {markdown_text(notes)} |"
        yield from ("", "</details>", "")


def board_table(report: Report) -> Iterator[str]:
    """Yield a Markdown table of all gains, collapsed; nothing without any."""
    gains = Boards(report).gains
    if not gains:
        return
    yield "<details><summary>boards, relative to the mean of their model</summary>"
    yield ""
    order = (Metric.ENERGY, Metric.TIME, Metric.EDP)
    titles = ("board", "host", "GPU", "cap", *(f"{metric.label} (%)" for metric in order), "notes")
    rows = [
        (
            *(short_uuid(gain.gpu_uuid), gain.host, gain.gpu_name, gain.cap),
            *(percent_range(gain.of(metric)) for metric in order),
            gain.left_out or "",
        )
        for gain in gains
    ]
    yield from markdown_lines(titles, rows, figures={4, 5, 6})
    yield from ("", "</details>", "")
