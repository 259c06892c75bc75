"""The report as Markdown, for the summary page of a CI job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_gpuenergy.record import (
    METRICS,
    UNLOCKED,
    Measurement,
    Metric,
    clocks,
)
from pytest_gpuenergy.report.analysis.best_kernels import Best, best_of_each, near_front, pareto
from pytest_gpuenergy.report.analysis.board_calibration import Boards
from pytest_gpuenergy.report.analysis.figure_columns import FIGURE_COLUMNS
from pytest_gpuenergy.report.analysis.gpu_models import by_model
from pytest_gpuenergy.report.analysis.rooflines import Roofline
from pytest_gpuenergy.report.analysis.subjects import group
from pytest_gpuenergy.report.store import Report
from pytest_gpuenergy.report.views.figure_words import figure, markdown_lines, markdown_text, spread
from pytest_gpuenergy.report.views.terminal_summary import (
    CLOCK_OVER_CAP,
    anchor_lines,
    board_lines,
    calibration_lines,
    gain_words,
    saving_words,
    short_uuid,
)
from pytest_gpuenergy.support import emulated_mark

_SHOWN = {
    "time_us": ".2f",
    "power_w": ".1f",
    "energy_mj": ".4g",
    "edp_mj_ms": ".4g",
    "gflops_per_w": ".2f",
}
"""The figures in the tables, with their formats."""

_METRICS = {"time_us": Metric.TIME, "energy_mj": Metric.ENERGY, "edp_mj_ms": Metric.EDP}
"""The metrics of figures that are shown with half the width of their interval."""


def markdown(report: Report, *, calibrated: bool = False) -> str:
    """Return the run, the best of each workload, and a collapsed table per workload and setpoint.

    Kernels on the Pareto front are in bold, those that may be on it within noise in italics. Names
    and errors are escaped.

    Args:
        report: the report.
        calibrated: whether its figures are (`calibrated_report`), which the head then says.
    """
    tables = (
        line
        for part in by_model(report)
        for line in (
            *_head(part, calibrated=calibrated),
            *_best(part.measurements),
            *_tables(part.measurements),
        )
    )
    return "\n".join([*tables, *board_table(report)])


def _head(report: Report, *, calibrated: bool) -> Iterator[str]:
    run, rows = report.run, report.measurements
    measured = [m for m in rows if m.measured]
    flagged = sum(bool(m.validity) for m in measured)
    emulated = emulated_mark(run.emulated)
    yield markdown_text(f"# {run.gpu_name}{emulated}, run {run.run_id}")
    yield ""
    yield (
        f"{len(measured)} of {len(rows)} items measured, {flagged} of them flagged. "
        f"Started {markdown_text(run.started or 'at an unknown time')} "
        f"on {markdown_text(run.host)}."
    )
    for line in anchor_lines(rows, report.anchors, emulated=run.emulated):
        yield f"{markdown_text(line)}  "
    for line in [*board_lines(report), *(calibration_lines(report) if calibrated else ())]:
        yield f"{markdown_text(line)}  "
    yield ""


def _best(rows: Sequence[Measurement]) -> Iterator[str]:
    best = best_of_each(rows)
    if not best:
        yield from ("Nothing was measured.", "")
        return
    setpoint = "best cap" if clocks(rows) == (UNLOCKED,) else "best setpoint"
    yield from markdown_lines(
        ("workload", "least time", "least energy", "least EDP", setpoint, "Pareto front"),
        (
            (
                one.workload,
                *(_best_cell(one, metric) for metric in METRICS),
                one.caps,
                one.size_of_front,
            )
            for one in best
        ),
        figures={5},
    )
    yield ""
    yield from _savings([one for one in best if one.savings])


def _savings(best: Sequence[Best]) -> Iterator[str]:
    if not best:
        return
    yield from markdown_lines(
        (CLOCK_OVER_CAP, *(metric.label for metric in METRICS)),
        (
            (one.workload, *(saving_words(one.savings.get(metric)) for metric in METRICS))
            for one in best
        ),
    )
    yield ""


def _tables(measurements: Sequence[Measurement]) -> Iterator[str]:
    for (workload, cap), rows in group(measurements).items():
        marks = {id(m): "*" for m in near_front(rows)} | {id(m): "**" for m in pareto(rows)}
        yield f"<details><summary>{markdown_text(workload)}, {markdown_text(cap)}</summary>"
        yield ""
        titles = ["kernel", *(FIGURE_COLUMNS[name].title for name in _SHOWN), "notes"]
        yield from markdown_lines(titles, (), figures={1, 2, 3, 4, 5})
        for m in rows:
            mark = marks.get(id(m), "")
            yield f"| {mark}{markdown_text(m.kernel.label)}{mark} | {_cells(m)} |"
        yield ""
        yield "</details>"
        yield ""


def _best_cell(best: Best, metric: Metric) -> str:
    found = best.ties[metric].best
    flagged = ", flagged" if found.validity else ""
    least = f"{figure(found, metric)}{spread(found.estimate(metric))}"
    return f"{least} ({best.where(metric)}{flagged})"


def _cells(m: Measurement) -> str:
    if m.time_ms is None or m.energy_mj is None:
        return f"| | | | | {markdown_text(m.why_no_figures)}"
    cells = []
    for name, form in _SHOWN.items():
        column, metric = FIGURE_COLUMNS[name], _METRICS.get(name)
        value = (column.value(m, Roofline()) or 0.0) * column.scale
        cells.append(f"{value:{form}}{spread(m.estimate(metric)) if metric else ''}")
    return f"{' | '.join(cells)} | {markdown_text(', '.join(m.validity))}"


def board_table(report: Report) -> Iterator[str]:
    """Yield a Markdown table of all gains, collapsed; nothing without any."""
    gains = Boards(report).gains
    if not gains:
        return
    yield "<details><summary>boards, relative to the mean of their model</summary>"
    yield ""
    order = (Metric.ENERGY, Metric.TIME, Metric.EDP)
    yield from markdown_lines(
        ("board", "host", "GPU", "cap", *(f"{metric.label} (%)" for metric in order), "notes"),
        (
            (
                *(short_uuid(gain.gpu_uuid), gain.host, gain.gpu_name, gain.cap),
                *(gain_words(gain.of(metric)) for metric in order),
                gain.left_out or "",
            )
            for gain in gains
        ),
        figures={4, 5, 6},
    )
    yield ""
    yield "</details>"
    yield ""
