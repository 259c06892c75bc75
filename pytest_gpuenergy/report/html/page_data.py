"""The page's content as plain JSON values, without markup or code."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pytest_gpuenergy.record import (
    VERIFIED,
    AnchorCheck,
    BoardGain,
    Estimate,
    Interval,
    Measurement,
    Metric,
    RunInfo,
    clock_label,
    clocks,
    limit_label,
    limits,
    peaks_of,
    setpoints,
)
from pytest_gpuenergy.report.analysis.best_kernels import (
    Best,
    Marks,
    Tie,
    best_of_each,
    cap_words,
    kernel_words,
)
from pytest_gpuenergy.report.analysis.board_calibration import Boards, calibrated_name
from pytest_gpuenergy.report.analysis.gpu_models import Models, by_model
from pytest_gpuenergy.report.analysis.rooflines import arithmetic, roofline
from pytest_gpuenergy.report.analysis.run_changes import (
    Difference,
    common_shifts,
    differences,
    pairs,
)
from pytest_gpuenergy.report.analysis.subjects import Subjects, with_cache
from pytest_gpuenergy.report.store import Report
from pytest_gpuenergy.report.views.figures import FIGURE_TABLE, figure_words
from pytest_gpuenergy.report.views.terminal_summary import saving_words, short_uuid
from pytest_gpuenergy.report.views.tidy_table import tidy_columns, tidy_rows
from pytest_gpuenergy.support import emulated_mark

Values = dict[str, Any]

_CHOSEN_FIRST = ("edp_mj_ms", "energy_mj", "time_us")
"""The figures that the page offers first."""

_CALIBRATED = {name: name.replace("_", "_calibrated_", 1) for name in _CHOSEN_FIRST}
"""The names of calibrated figures on the page, by the names of the raw ones."""

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
    """Return everything that the page shows of ``report`` and its differences from ``baseline``.

    Raises:
        ReportInputError: one report is from an emulated GPU and the other from a real one.
    """
    run, measurements = report.run, report.measurements
    subjects = Subjects(measurements)
    best = [one for part in by_model(report) for one in best_of_each(part.measurements, subjects)]
    marks, boards, models = Marks(best), Boards(report), Models(report)
    counts = Counter(flag for m in measurements for flag in dict.fromkeys(m.validity))
    figures = {
        name: {"title": FIGURE_TABLE[name].title, "better": FIGURE_TABLE[name].better}
        for name in dict.fromkeys([*_CHOSEN_FIRST, *FIGURE_TABLE])
    }
    if boards.compared:
        figures |= {
            name: {
                "title": f"{FIGURE_TABLE[raw].label}, calibrated ({FIGURE_TABLE[raw].unit})",
                "better": FIGURE_TABLE[raw].better,
            }
            for raw, name in _CALIBRATED.items()
        }
    rows = [
        {**_row(m, models.of(m), marks, subjects), **_calibrated_fields(m, boards)}
        for m in measurements
    ]
    data = {
        "gpu": run.gpu_name,
        "emulated": run.emulated,
        "run": _identity(run),
        "caps": setpoints(measurements),
        "limits": limits(measurements),
        "clocks": clocks(measurements),
        "figures": figures,
        "rows": rows,
        "axes": axes(report),
        "roofs": _roofs(measurements, run.gpu_name),
        "best": [_best(entry) for entry in best],
        "flags": [
            {"flag": flag, "count": count, "meaning": FLAGS.get(flag, "")}
            for flag, count in counts.most_common()
        ],
        "anchors": [_check(anchor) for anchor in report.anchors],
        "boards": [_gain(gain) for gain in boards.gains],
        "baseline": None,
        "shifts": [],
        "differences": [],
    }
    if baseline is not None:
        data["baseline"] = _identity(baseline.run)
        data["shifts"] = [*_shifts(report, baseline)]
        data["differences"] = [
            _difference(difference, subjects) for difference in differences(report, baseline)
        ]
    return data


def finite(value: float | None, scale: float = 1.0) -> float | None:
    """``value`` times ``scale``; None if it is not a finite number."""
    if value is None:
        return None
    scaled = value * scale
    return scaled if math.isfinite(scaled) else None


def _interval_fields(
    name: str, value_and_ends: Iterable[float | None], scale: float = 1.0
) -> dict[str, float | None]:
    """Return a value and the ends of its interval as ``name``, ``name_low`` and ``name_high``."""
    values = zip(("", "_low", "_high"), value_and_ends, strict=True)
    return {f"{name}{end}": finite(value, scale) for end, value in values}


def _percents(name: str, ratio: Estimate | None) -> dict[str, float | None]:
    """Return how far a ratio is from 1 in percent, with its ends."""
    ends = (None, None, None) if ratio is None else (ratio.value, ratio.low, ratio.high)
    return _interval_fields(name, (None if end is None else end - 1 for end in ends), 100.0)


def _row(m: Measurement, gpu_name: str, marks: Marks, subjects: Subjects) -> Values:
    """Return one measurement, on a card of this name; what is not a finite number is None."""
    roof = roofline(m, gpu_name)
    figures: Values = {}
    for name, figure in FIGURE_TABLE.items():
        value, interval = figure.value(m, roof), figure.interval(m, roof)
        ends = (interval.low, interval.high) if interval else (value, value)
        figures |= _interval_fields(name, (value, *ends), figure.scale)
    state = "flagged" if m.validity else "clean"
    if not m.measured:
        state = "verified" if m.verified_only else "failed"
    # The mean over the trials; in older records, the reading after them.
    temperature_c = finite(m.temperature_c)
    if m.temperature_c is None and m.end is not None:
        temperature_c = m.end.temperature_c
    return {
        "workload": subjects.of(m),
        "known_as": with_cache(m.workload.name, m),
        "kernel": m.kernel.label,
        "band": str(m.kernel.details.get("band", m.kernel.origin)),
        "cap": m.cap,
        "limit": limit_label(m),
        "clock": clock_label(m),
        "lock_mhz": m.sm_clock_mhz,
        "limit_w": finite(m.enforced_power_limit_w or m.power_limit_w),
        **figures,
        "roof": roof.roof,
        "temperature_c": temperature_c,
        "sm_clock_mhz": m.end.sm_clock_mhz if m.end else None,
        "effective_sm_clock_mhz": finite(m.effective_sm_clock_mhz),
        "clock_states": [f"{state.share:.0%} at {state.name}" for state in m.clock_states]
        if len(m.clock_states) > 1
        else [],
        "binding": m.cap_binding,
        "pareto": id(m) in marks.front,
        "near_pareto": id(m) in marks.near,
        "best_of": marks.best_of(m),
        "flags": list(m.validity),
        "state": state,
        "outcome": m.outcome,
        "error": VERIFIED if m.verified_only else m.error,
        "digest": m.kernel.digest[:12],
        "variant": str(m.kernel.details.get("state", "")),
        "item": m.node_id,
    }


def _calibrated_fields(m: Measurement, boards: Boards) -> Values:
    """Return the calibrated figures of a row with their intervals; nothing without gains."""
    if not boards.compared:
        return {}
    found = boards.calibrated(m)
    values: Values = {}
    for raw, name in _CALIBRATED.items():
        figure = FIGURE_TABLE[raw]
        assert figure.metric is not None
        field = calibrated_name(figure.metric)
        ends: Interval | None = getattr(found, f"{field}_ci95")
        low, high = (None, None) if ends is None else (ends.low, ends.high)
        values |= _interval_fields(name, (getattr(found, field), low, high), figure.scale)
    return values


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


def _check(check: AnchorCheck) -> Values:
    changes: Values = {}
    for metric in Metric:
        changes |= _percents(metric, check.ratios.get(metric))
    return {
        "started": check.started,
        "workload": check.workload,
        "kernel": check.kernel,
        "cap": check.cap,
        "temperature_c": check.temperature_c,
        "first_temperature_c": check.first_temperature_c,
        **changes,
        "verdict": check.verdict,
        "why": check.error or ", ".join(check.validity),
        "items": len(check.items),
    }


def _gain(gain: BoardGain) -> Values:
    """Return a gain, in percent above or below the mean board."""
    changes: Values = {}
    for metric in Metric:
        changes |= _percents(metric, gain.of(metric))
    return {
        "board": short_uuid(gain.gpu_uuid),
        "host": gain.host,
        "gpu": gain.gpu_name,
        "cap": gain.setpoint,
        **changes,
        "why": gain.left_out or "",
    }


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


def _shifts(report: Report, baseline: Report) -> Iterator[Values]:
    """Yield what unchanged kernels have in common, in percent, by cap and metric."""
    for place, metrics in common_shifts(pairs(report, baseline)).items():
        for metric, shift in metrics.items():
            change = shift.change
            ends = map(math.expm1, (change.value, change.low, change.high))
            yield {
                "cap": place.cap,
                "same_board": shift.same_board,
                "metric": str(metric),
                "kernels": shift.kernels,
                "apart": shift.apart,
                **_interval_fields("change_percent", ends, 100.0),
                "scatter_percent": finite(shift.scatter, 100.0),
            }


def _difference(one: Difference, subjects: Subjects) -> Values:
    before, now = one.values
    before_interval, now_interval = (
        None if ends is None else (ends.low, ends.high) for ends in one.intervals
    )
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
        "before_interval": before_interval,
        "now_interval": now_interval,
        "change_percent": finite(one.change, 100.0),
        "relative_percent": finite(one.relative_change, 100.0),
        "same_kernel": one.same_kernel,
        "flags": sorted({*one.before.validity, *one.now.validity}),
    }


def _best(best: Best) -> Values:
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
    value, estimate = best.figure(metric), best.estimate(metric)
    # How certain it is that the best is the best, in words.
    tied = set(map(id, found.rows))
    beyond = [m.figure(metric) or 0.0 for m in rows if id(m) not in tied]
    sure = "beyond noise" if len(tied) == 1 else f"{len(tied)} of {len(rows)} within noise"
    if len(rows) == 1:
        sure = "the only one"
    elif beyond and value:
        percent = 100 * (min(beyond) / value - 1)
        more = f"{percent:.0f} %" if percent >= 10 else f"{percent:.2g} %"
        sure += f"{':' if len(tied) == 1 else ';'} the next is {more} more"
    return {
        "figure": figure_words(best, metric),
        "percent": None if estimate is None else 100 * estimate.relative_half_width,
        "value": value,
        "kernels": kernel_words(found),
        "caps": cap_words(found, rows),
        "flagged": bool(best.validity),
        "sure": sure,
    }


Axis = dict[str, Any]
MAX_TEXTS = 100
"""The largest number of distinct texts on an axis."""
_SHOWN = frozenset(
    (
        *("node_id", "workload_name", "kernel_label", "kernel_digest", "kernel_origin", "cap"),
        *("time_ms", "energy_mj", "edp_mj_ms", "power_w", "gflops", "gflops_per_w", "gb_s"),
        *("flop_per_byte", "percent_of_peak", "error", "outcome", "validity", "started"),
        *("parameters", "pareto", "best_of"),
    )
)
"""The table's columns that a row has by another name, or that are of no use on an axis."""
_UNITS = {
    "ms": "ms",
    "s": "s",
    "us": "µs",
    "mj": "mJ",
    "j": "J",
    "w": "W",
    "mw": "mW",
    "mhz": "MHz",
    "c": "°C",
    "mib": "MiB",
    "bytes": "bytes",
}
"""The units on an axis, by the end of a column's name."""


def axes(report: Report) -> list[Axis]:
    """Columns with a ``name``, a ``title``, and a value for each measurement.

    Mappings, such as a workload's parameters, become a column for each of their names. Left out is
    what has the same value in all measurements, and text with more than `MAX_TEXTS` values.
    """
    rows = list(tidy_rows(report))
    found = []
    for place, column in enumerate(tidy_columns(report.measurements)):
        if column.name in _SHOWN or column.name.endswith(("_ci95_low", "_ci95_high")):
            continue
        cells = [row[place] for row in rows]
        columns: dict[str, Sequence[Any]] = {column.name: cells}
        mappings = [_parsed_mapping(cell) for cell in cells]
        if any(mappings):
            keys = dict.fromkeys(key for mapping in mappings for key in mapping)
            columns = {
                f"{column.name}.{key}": [mapping.get(key) for mapping in mappings] for key in keys
            }
        found += [axis for item in columns.items() if (axis := _axis(*item)) is not None]
    return found


def _parsed_mapping(cell: object) -> dict[str, Any]:
    """Return the mapping that a cell has as JSON text; empty for any other cell."""
    if not isinstance(cell, str) or not cell.startswith("{"):
        return {}
    try:
        found = json.loads(cell)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _axis(name: str, values: Sequence[Any]) -> Axis | None:
    """Return an axis of numbers, or else of texts; None where there is nothing to compare."""
    known = [value for value in values if value is not None and value != ""]
    numeric = all(isinstance(one, int | float) and not isinstance(one, bool) for one in known)
    cells: list[float | str | None] = []
    for value in values:
        if value is None or value == "":
            cells.append(None)
        elif numeric:
            cells.append(value if math.isfinite(value) else None)
        elif isinstance(value, bool):
            cells.append("yes" if value else "no")
        elif isinstance(value, list | tuple):
            cells.append(" x ".join(map(str, value)))
        else:
            cells.append(str(value))
    distinct = set(cells) - {None}
    if len(distinct) < 2 or (not numeric and len(distinct) > MAX_TEXTS):
        return None
    words, _, last = name.rpartition("_")
    title = f"{words} ({_UNITS[last]})" if words and last in _UNITS else name
    return {"name": name, "title": title.replace("_", " "), "values": cells}
