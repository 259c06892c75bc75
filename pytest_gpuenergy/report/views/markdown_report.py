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
from pytest_gpuenergy.report.analysis.gpu_models import by_model
from pytest_gpuenergy.report.analysis.subjects import group
from pytest_gpuenergy.report.store import Report
from pytest_gpuenergy.report.views.figure_words import figure, markdown_text, spread
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


def markdown(report: Report, *, calibrated: bool = False) -> str:
    """The run, the best of each workload, and a collapsed table per workload and setpoint.

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
    yield f"| workload | least time | least energy | least EDP | {setpoint} | Pareto front |"
    yield "|---|---|---|---|---|---:|"
    for one in best:
        cells = [
            one.workload,
            *(_best_cell(one, metric) for metric in METRICS),
            one.caps,
            one.size_of_front,
        ]
        yield f"| {' | '.join(map(markdown_text, cells))} |"
    yield ""
    yield from _savings([one for one in best if one.savings])


def _savings(best: Sequence[Best]) -> Iterator[str]:
    if not best:
        return
    yield f"| {CLOCK_OVER_CAP} | {' | '.join(metric.label for metric in METRICS)} |"
    yield "|---|---|---|---|"
    for one in best:
        cells = (one.workload, *(saving_words(one.savings.get(metric)) for metric in METRICS))
        yield f"| {' | '.join(map(markdown_text, cells))} |"
    yield ""


def _tables(measurements: Sequence[Measurement]) -> Iterator[str]:
    for (workload, cap), rows in group(measurements).items():
        marks = {id(m): "*" for m in near_front(rows)} | {id(m): "**" for m in pareto(rows)}
        yield f"<details><summary>{markdown_text(workload)}, {markdown_text(cap)}</summary>"
        yield ""
        yield "| kernel | time (µs) | power (W) | energy (mJ) | EDP (mJ·ms) | GFLOP/s/W | notes |"
        yield "|---|---:|---:|---:|---:|---:|---|"
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
    time, energy, edp = (spread(m.estimate(metric)) for metric in METRICS)
    return (
        f"{m.time_ms * 1e3:.2f}{time} | {m.power_w:.1f} | {m.energy_mj:.4g}{energy} | "
        f"{m.edp_mj_ms:.4g}{edp} | "
        f"{m.gflops_per_w:.2f} | {markdown_text(', '.join(m.validity))}"
    )


def board_table(report: Report) -> Iterator[str]:
    """A Markdown table of all gains, collapsed; nothing without any."""
    gains = Boards(report).gains
    if not gains:
        return
    yield "<details><summary>boards, relative to the mean of their model</summary>"
    yield ""
    yield "| board | host | GPU | cap | energy (%) | time (%) | EDP (%) | notes |"
    yield "|---|---|---|---|---:|---:|---:|---|"
    for gain in gains:
        order = (Metric.ENERGY, Metric.TIME, Metric.EDP)
        figures = [gain_words(gain.of(metric)) for metric in order]
        words = (short_uuid(gain.gpu_uuid), gain.host, gain.gpu_name, gain.cap)
        cells = [*words, *figures, gain.left_out or ""]
        yield f"| {' | '.join(map(markdown_text, cells))} |"
    yield ""
    yield "</details>"
    yield ""
