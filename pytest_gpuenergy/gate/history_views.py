"""Series of a metric over several runs, formatted for the terminal, as Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pytest_gpuenergy.gate.history import Change, Point, Series
from pytest_gpuenergy.gate.views import label
from pytest_gpuenergy.record import RunInfo
from pytest_gpuenergy.report import markdown_text
from pytest_gpuenergy.support import dump, emulated_mark, wrapped

SERIES_SHOWN = 8
"""With more series, the terminal shows no values."""


def history_text(found: Sequence[Series], width: int | None = None) -> Iterator[str]:
    """Each series with its values and changes, in lines of at most ``width`` characters."""
    for line in _lines(found):
        yield from wrapped(line, width)


def _lines(found: Sequence[Series]) -> Iterator[str]:
    for series in found:
        yield heading(series)
        if len(found) <= SERIES_SHOWN:
            for point in series.points:
                yield f"  {_describe_point(point, series.metric.unit)}"
        for change in series.changes:
            yield f"  changed by {_describe_change(change)}"
    if len(found) > SERIES_SHOWN:
        yield f"values are shown for at most {SERIES_SHOWN} kernels: select them with -k"


def heading(series: Series) -> str:
    """``case1-k01-300W EDP, NVIDIA H200 GPU-1, 12 runs, spread 0.2 %``."""
    run, count = series.run, len(series.points)
    words = (
        f"{_name(series)} {series.metric.label}, {run.gpu_name} "
        f"{run.gpu_uuid[:12]}{emulated_mark(run.emulated)}, "
        f"{count} run{'' if count == 1 else 's'}"
    )
    return words if series.spread is None else f"{words}, spread {_percent(series.spread)}"


def history_markdown(found: Sequence[Series]) -> str:
    """A Markdown table with a row per series, followed by a list of changes."""
    lines = [
        "| kernel | metric | GPU | runs | first | latest | spread | changes |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    ]
    for series in found:
        unit, run = series.metric.unit, series.run
        cells = (
            _name(series),
            series.metric.label,
            f"{run.gpu_name}{emulated_mark(run.emulated)}",
            str(len(series.points)),
            *(f"{series.points[at].value:.4g} {unit}" for at in (0, -1)),
            "" if series.spread is None else _percent(series.spread),
            str(len(series.changes)),
        )
        lines.append(f"| {' | '.join(map(markdown_text, cells))} |")
    changes = [
        markdown_text(f"- {_name(series)} changed by {_describe_change(change)}")
        for series in found
        for change in series.changes
    ]
    return "\n".join([*lines, *([""] if changes else []), *changes]) + "\n"


def history_json(found: Sequence[Series]) -> str:
    """The series as JSON, ``schema_version`` 1; changes and spreads are fractions."""
    return dump({"schema_version": 1, "series": [_series(series) for series in found]})


def _series(series: Series) -> dict[str, Any]:
    run = series.run
    return {
        **series.identity._asdict(),
        "item": series.item,
        "metric": series.metric,
        "unit": series.metric.unit,
        "gpu_name": run.gpu_name,
        "gpu_uuid": run.gpu_uuid,
        "emulated": run.emulated,
        "spread": series.spread,
        "points": [
            {
                "run_id": point.run.run_id,
                "started": point.run.started,
                "git_revision": point.run.git_revision,
                "value": point.value,
                "ci95": point.ci95 and [point.ci95.low, point.ci95.high],
                "validity": list(point.flags),
            }
            for point in series.points
        ],
        "changes": [
            {
                "run_id": change.first.run.run_id,
                "before": change.before,
                "after": change.after,
                "relative": change.relative,
                "p": change.p,
            }
            for change in series.changes
        ],
    }


def _name(series: Series) -> str:
    words = label(series.identity)
    return f"{words} ({series.item})" if series.item else words


def _describe_point(point: Point, unit: str) -> str:
    words = f"{point.run.run_id}  {_revision(point.run):<12}  {point.value:.4g} {unit}"
    if point.ci95 is not None and point.value > 0:
        words += f"  ±{_percent((point.ci95.high - point.ci95.low) / 2 / point.value)}"
    return f"{words}  {', '.join(point.flags)}".rstrip()


def _describe_change(change: Change) -> str:
    last, first = change.last.run, change.first.run
    words = (
        f"{100 * change.relative:+.1f} % from run {first.run_id} on, revision "
        f"{_revision(last)} to {_revision(first)}"
    )
    drivers = [run.software.get("driver", "unknown") for run in (last, first)]
    if drivers[0] != drivers[1]:
        words += f", driver {drivers[0]} to {drivers[1]}"
    return f"{words} (p = {change.p:.4f})"


def _revision(run: RunInfo) -> str:
    return run.short_revision or "unknown"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.2g} %"
