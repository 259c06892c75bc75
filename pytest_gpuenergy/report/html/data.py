"""The page's content as plain JSON values, without markup or code."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from pytest_gpuenergy.record import (
    AnchorCheck,
    Interval,
    Measurement,
    Metric,
    RunInfo,
    clocks,
    limits,
    peaks_of,
    setpoints,
)
from pytest_gpuenergy.report.boards import Boards
from pytest_gpuenergy.report.differences import Difference, differences
from pytest_gpuenergy.report.html.axes import axes
from pytest_gpuenergy.report.html.best import best_values
from pytest_gpuenergy.report.html.boards import calibrated_figures, calibrated_values, gain_values
from pytest_gpuenergy.report.html.rows import FIGURES, Standing, finite, row_values
from pytest_gpuenergy.report.models import Models, by_model
from pytest_gpuenergy.report.roofline import arithmetic
from pytest_gpuenergy.report.shift import common_shifts, pairs
from pytest_gpuenergy.report.store import Report
from pytest_gpuenergy.report.subjects import Subjects
from pytest_gpuenergy.report.tables import best_of_each
from pytest_gpuenergy.support import emulated_mark

Values = dict[str, Any]

FLAGS = {
    "not_steady": "the power changed significantly, by more than 1 % per second, during the trials",
    "clock_step": "the SM clock stepped to another level during the trials, and the power with it",
    "interval_wide": "the energy's interval is wider than ±1 %, apart from what the heat adds",
    "not_settled": "the card was so cold or hot that this adds ±5 % to the energy's interval",
    "host_gaps": "the GPU was idle for more than 1 % of the window",
    "sources_disagree": "counter and power samples differ by more than 2 %",
    "counter_stale": "the energy counter stood still: there are no figures",
    "power_stale": "there is no counter, and the power reading stood still: there are no figures",
    "counter_reset": "the energy counter ran backwards: there are no figures",
    "hw_slowdown": "the hardware lowered the clocks",
    "sw_thermal_slowdown": "the driver lowered the clocks because of heat",
    "hw_thermal_slowdown": "the hardware lowered the clocks because of heat",
    "hw_power_brake": "an external power brake lowered the clocks",
    "temperature_drift": "the GPU warmed or cooled by more than 8 K during the trials",
    "power_limit_changed": "the requested or the enforced power limit changed",
    "enforced_limit_lower": "the card enforced less than the cap",
    "power_limit_unknown": "the card no longer reported its power limit",
    "clock_below_lock": "the SMs ran below the clock they were locked to, for no known reason",
    "clock_above_lock": "the SMs ran above the clock they were locked to",
    "lock_lost": "the SMs ran above the clock they were locked to from some moment on",
    "drift": "an anchor kernel, measured before and after, had changed by more than 3 %",
    "foreign_process": "another process had a CUDA context on the GPU",
    "legacy": "read from an older tool's output: how it was measured is unknown",
}


def page_data(report: Report, baseline: Report | None = None) -> Values:
    """Everything the page shows of ``report`` and its differences from ``baseline``.

    Raises:
        ReportInputError: one report is from an emulated GPU and the other from a real one.
    """
    run, measurements = report.run, report.measurements
    subjects = Subjects(measurements)
    best = [one for part in by_model(report) for one in best_of_each(part.measurements, subjects)]
    standing = Standing.of(best)
    boards, models = Boards(report), Models(report)
    rows = [
        {**row_values(m, models.of(m), standing, subjects), **calibrated_values(m, boards)}
        for m in measurements
    ]
    return {
        "gpu": run.gpu_name,
        "emulated": run.emulated,
        "run": _identity(run),
        "caps": setpoints(measurements),
        "limits": limits(measurements),
        "clocks": clocks(measurements),
        "figures": {name: {"title": title, "better": way} for name, (title, way) in FIGURES.items()}
        | calibrated_figures(boards),
        "rows": rows,
        "axes": axes(report),
        "roofs": _roofs(measurements, run.gpu_name),
        "best": [best_values(one) for one in best],
        "flags": _flags(measurements),
        "anchors": [_check(one) for one in report.anchors],
        "boards": [gain_values(one) for one in boards.gains],
        "baseline": None if baseline is None else _identity(baseline.run),
        "shifts": [] if baseline is None else _shifts(report, baseline),
        "differences": []
        if baseline is None
        else [_difference(one, subjects) for one in differences(report, baseline)],
    }


def _roofs(rows: Sequence[Measurement], gpu_name: str) -> Values | None:
    """The card's peaks for the arithmetic that occurs; None if they are unknown."""
    peaks = peaks_of(gpu_name)
    if peaks is None:
        return None
    kinds = dict.fromkeys(filter(None, map(arithmetic, rows)))
    known = {kind: peaks.tflops_of(kind) for kind in kinds}
    return {
        "bandwidth_gb_s": peaks.bandwidth_gb_s,
        "gflops": {kind: 1e3 * tflops for kind, tflops in known.items() if tflops is not None},
        "source": peaks.source,
    }


def _flags(rows: Sequence[Measurement]) -> list[Values]:
    counts = Counter(flag for m in rows for flag in dict.fromkeys(m.validity))
    return [
        {"flag": flag, "count": count, "meaning": FLAGS.get(flag, "")}
        for flag, count in counts.most_common()
    ]


def _check(check: AnchorCheck) -> Values:
    return {
        "started": check.started,
        "workload": check.workload,
        "kernel": check.kernel,
        "cap": check.cap,
        "temperature_c": check.temperature_c,
        "first_temperature_c": check.first_temperature_c,
        **{key: end for metric in Metric for key, end in _changes(metric, check).items()},
        "verdict": check.verdict,
        "why": check.error or ", ".join(check.validity),
        "items": len(check.items),
    }


def _changes(metric: Metric, check: AnchorCheck) -> Values:
    """The change of a metric in percent, with the ends of its interval."""
    ratio = check.ratios.get(metric)
    ends = (None, None, None) if ratio is None else (ratio.value, ratio.low, ratio.high)
    percents = (None if end is None else finite(end - 1, 100.0) for end in ends)
    return dict(zip((str(metric), f"{metric}_low", f"{metric}_high"), percents, strict=True))


def _identity(run: RunInfo) -> list[tuple[str, str]]:
    limits = [f"{name} {watts:g} W" for name, watts in run.power_limits_w.items()]
    return [
        ("run", run.run_id),
        ("started", run.started),
        ("host", run.host),
        ("GPU", f"{run.gpu_name}{emulated_mark(run.emulated)}"),
        ("UUID", run.gpu_uuid),
        ("architecture", run.architecture),
        ("power limits", ", ".join(limits)),
        ("git revision", run.git_revision or "unknown"),
        *((f"option --{name}", value) for name, value in run.options.items()),
        *run.software.items(),
    ]


def _shifts(report: Report, baseline: Report) -> list[Values]:
    """What unchanged kernels have in common, in percent, by cap and metric."""
    found = common_shifts(pairs(report, baseline))
    return [
        {
            "cap": place.cap,
            "same_board": shift.same_board,
            "metric": str(metric),
            "kernels": shift.kernels,
            "apart": shift.apart,
            **{
                f"change_percent{end}": finite(math.expm1(value), 100.0)
                for end, value in (
                    ("", shift.change.value),
                    ("_low", shift.change.low),
                    ("_high", shift.change.high),
                )
            },
            "scatter_percent": finite(shift.scatter, 100.0),
        }
        for place, metrics in found.items()
        for metric, shift in metrics.items()
    ]


def _difference(one: Difference, subjects: Subjects) -> Values:
    (before, now), intervals = one.values, one.intervals
    change, relative = one.change, one.relative_change
    return {
        "workload": subjects.of(one.now),
        "workload_name": one.now.workload.name,
        "kernel": one.now.kernel.label,
        "cap": one.now.cap,
        "cache": one.now.cache,
        "metric": one.metric,
        "figure": f"{one.metric.label} ({one.metric.unit})",
        "before": before,
        "now": now,
        "before_interval": _ends(intervals[0]),
        "now_interval": _ends(intervals[1]),
        "change_percent": None if change is None else finite(change, 100.0),
        "relative_percent": None if relative is None else finite(relative, 100.0),
        "same_kernel": one.same_kernel,
        "flags": sorted({*one.before.validity, *one.now.validity}),
    }


def _ends(interval: Interval | None) -> tuple[float, float] | None:
    return None if interval is None else (interval.low, interval.high)
