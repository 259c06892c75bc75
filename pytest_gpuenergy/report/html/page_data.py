"""The page's content as plain JSON values, without markup or code."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from pytest_gpuenergy.record import (
    AnchorCheck,
    BoardGain,
    Interval,
    Measurement,
    Metric,
    RunInfo,
    clocks,
    limits,
    peaks_of,
    setpoints,
)
from pytest_gpuenergy.report.analysis.best_kernels import (
    Best,
    Tie,
    best_of_each,
    cap_words,
    kernel_words,
)
from pytest_gpuenergy.report.analysis.board_calibration import Boards, calibrated_name
from pytest_gpuenergy.report.analysis.figure_columns import FIGURE_COLUMNS
from pytest_gpuenergy.report.analysis.gpu_models import Models, by_model
from pytest_gpuenergy.report.analysis.rooflines import arithmetic
from pytest_gpuenergy.report.analysis.run_changes import (
    Difference,
    common_shifts,
    differences,
    pairs,
)
from pytest_gpuenergy.report.analysis.subjects import Subjects
from pytest_gpuenergy.report.html.page_rows import RowMarks, axes, finite, row_values
from pytest_gpuenergy.report.store import Report
from pytest_gpuenergy.report.views.figure_words import figure
from pytest_gpuenergy.report.views.terminal_summary import saving_words, short_uuid
from pytest_gpuenergy.support import emulated_mark

Values = dict[str, Any]

_METRICS_CHOSEN = (Metric.EDP, Metric.ENERGY, Metric.TIME)
_CHOSEN_FIRST = ("edp_mj_ms", "energy_mj", "time_us")
"""The figures of these metrics, which the page offers first."""

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
    standing = RowMarks.of(best)
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
        "figures": {
            name: {"title": FIGURE_COLUMNS[name].title, "better": FIGURE_COLUMNS[name].better}
            for name in dict.fromkeys([*_CHOSEN_FIRST, *FIGURE_COLUMNS])
        }
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
    """Return the card's peaks for the arithmetic that occurs; None if they are unknown."""
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
    """Return the change of a metric in percent, with the ends of its interval."""
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
    """Return what unchanged kernels have in common, in percent, by cap and metric."""
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


def best_values(best: Best) -> Values:
    """Return the best of a workload by each metric, with all that may be as good within noise."""
    return {
        "workload": best.workload,
        "measured": len(best.rows),
        **{str(metric): _leader(found, best.rows) for metric, found in best.ties.items()},
        "front": [{"kernel": m.kernel.label, "cap": m.cap} for m in best.front],
        "front_size": best.size_of_front,
        "savings": {
            metric: {"change": saving.change, "words": saving_words(saving)}
            for metric, saving in best.savings.items()
        }
        or None,
    }


def _leader(found: Tie, rows: Sequence[Measurement]) -> Values:
    best, metric = found.best, found.metric
    estimate = best.estimate(metric)
    return {
        "figure": figure(best, metric),
        "percent": None if estimate is None else 100 * estimate.relative_half_width,
        "value": best.figure(metric),
        "kernels": kernel_words(found),
        "caps": cap_words(found, rows),
        "flagged": bool(best.validity),
        "sure": _sure(found, rows),
    }


def _sure(found: Tie, rows: Sequence[Measurement]) -> str:
    """Return how certain it is that the best is the best, in words."""
    best, tied = found.best.figure(found.metric) or 0.0, set(map(id, found.rows))
    if len(rows) == 1:
        return "the only one"
    beyond = [m.figure(found.metric) or 0.0 for m in rows if id(m) not in tied]
    lead = f"the next is {_more(min(beyond), best)} more" if beyond and best > 0 else ""
    if len(tied) == 1:
        return f"beyond noise: {lead}" if lead else "beyond noise"
    words = f"{len(tied)} of {len(rows)} within noise"
    return f"{words}; {lead}" if lead else words


def _more(value: float, than: float) -> str:
    percent = 100 * (value / than - 1)
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.2g} %"


_CALIBRATED = {name: name.replace("_", "_calibrated_", 1) for name in _CHOSEN_FIRST}
"""The names of calibrated figures on the page, by the names of the raw ones."""


def calibrated_figures(boards: Boards) -> dict[str, dict[str, str]]:
    """Titles of the calibrated figures, like those of the raw ones; none without gains."""
    if not boards.compared:
        return {}
    return {
        name: {
            "title": f"{FIGURE_COLUMNS[raw].label}, calibrated ({FIGURE_COLUMNS[raw].unit})",
            "better": FIGURE_COLUMNS[raw].better,
        }
        for raw, name in _CALIBRATED.items()
    }


def calibrated_values(m: Measurement, boards: Boards) -> Values:
    """Return the calibrated figures of a row with their intervals; nothing without gains."""
    if not boards.compared:
        return {}
    found = boards.calibrated(m)
    values: Values = {}
    for metric, (raw, name) in zip(_METRICS_CHOSEN, _CALIBRATED.items(), strict=True):
        value: float | None = getattr(found, calibrated_name(metric))
        ends: Interval | None = getattr(found, f"{calibrated_name(metric)}_ci95")
        low, high = (None, None) if ends is None else (ends.low, ends.high)
        for key, end in ((name, value), (f"{name}_low", low), (f"{name}_high", high)):
            values[key] = finite(end, FIGURE_COLUMNS[raw].scale)
    return values


def gain_values(gain: BoardGain) -> Values:
    """Return a gain, in percent above or below the mean board."""
    ends: Values = {}
    for metric in Metric:
        ratio = gain.of(metric)
        for name, end in (("", "value"), ("_low", "low"), ("_high", "high")):
            change = None if ratio is None else getattr(ratio, end) - 1
            ends[f"{metric}{name}"] = finite(change, 100.0)
    return {
        "board": short_uuid(gain.gpu_uuid),
        "host": gain.host,
        "gpu": gain.gpu_name,
        "cap": gain.cap if gain.cache == "hot" else f"{gain.cap}, {gain.cache}",
        **ends,
        "why": gain.left_out or "",
    }
