"""The report as Markdown, for the summary page of a CI job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_gpuenergy.record.measurement import Measurement
from pytest_gpuenergy.report.anchor import anchor_lines
from pytest_gpuenergy.report.store import Report
from pytest_gpuenergy.report.tables import best_of_each, energy, group, pareto, time
from pytest_gpuenergy.report.text import figures, markdown_text


def markdown(report: Report) -> str:
    """The run, the best of each workload, and a collapsed table per workload and cap.

    Kernels on the Pareto front are in bold. Names and errors are escaped.
    """
    return "\n".join([*_head(report), *_best(report.measurements), *_tables(report.measurements)])


def _head(report: Report) -> Iterator[str]:
    run, rows = report.run, report.measurements
    measured = [m for m in rows if m.measured]
    flagged = sum(bool(m.validity) for m in measured)
    emulated = " (emulated)" if run.emulated else ""
    yield markdown_text(f"# {run.gpu_name}{emulated}, run {run.run_id}")
    yield ""
    yield (
        f"{len(measured)} of {len(rows)} items measured, {flagged} of them flagged. "
        f"Started {markdown_text(run.started or 'at an unknown time')} "
        f"on {markdown_text(run.host)}."
    )
    for line in anchor_lines(rows, report.anchors, emulated=run.emulated):
        yield f"{markdown_text(line)}  "
    yield ""


def _best(rows: Sequence[Measurement]) -> Iterator[str]:
    best = best_of_each(rows)
    if not best:
        yield from ("Nothing was measured.", "")
        return
    yield "| workload | least time | least energy | least EDP (mJ·ms) | best cap | Pareto front |"
    yield "|---|---|---|---|---|---:|"
    for one in best:
        cells = [
            one.workload,
            f"{time(one.time.time_ms or 0.0)} {_which(one.time)}",
            f"{energy(one.energy.energy_mj or 0.0)} {_which(one.energy)}",
            f"{figures(one.edp.edp_mj_ms or 0.0)} {_which(one.edp)}",
            one.edp.cap,
            str(len(one.front)),
        ]
        yield f"| {' | '.join(map(markdown_text, cells))} |"
    yield ""


def _tables(measurements: Sequence[Measurement]) -> Iterator[str]:
    for (workload, cap), rows in group(measurements).items():
        front = {id(m) for m in pareto(rows)}
        yield f"<details><summary>{markdown_text(workload)}, {markdown_text(cap)}</summary>"
        yield ""
        yield "| kernel | time (µs) | power (W) | energy (mJ) | EDP (mJ·ms) | GFLOP/s/W | notes |"
        yield "|---|---:|---:|---:|---:|---:|---|"
        for m in rows:
            label = markdown_text(m.kernel.label)
            yield f"| {f'**{label}**' if id(m) in front else label} | {_cells(m)} |"
        yield ""
        yield "</details>"
        yield ""


def _which(m: Measurement) -> str:
    return f"({m.kernel.label} at {m.cap}{', flagged' if m.validity else ''})"


def _cells(m: Measurement) -> str:
    if m.time_ms is None or m.energy_mj is None:
        return f"| | | | | {markdown_text(m.why_no_figures)}"
    return (
        f"{m.time_ms * 1e3:.2f} | {m.power_w:.1f} | {m.energy_mj:.4g} | {m.edp_mj_ms:.4g} | "
        f"{m.gflops_per_w:.2f} | {markdown_text(', '.join(m.validity))}"
    )
