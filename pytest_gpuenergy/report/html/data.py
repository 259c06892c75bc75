"""The page's content as plain JSON values, without markup or code."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from pytest_gpuenergy.record.anchor import AnchorCheck
from pytest_gpuenergy.record.clock_state import ClockState
from pytest_gpuenergy.record.estimate import Interval
from pytest_gpuenergy.record.measurement import VERIFIED, Measurement
from pytest_gpuenergy.record.metrics import Metric
from pytest_gpuenergy.record.run import RunInfo
from pytest_gpuenergy.report.differences import Difference, differences
from pytest_gpuenergy.report.html.charts import charts
from pytest_gpuenergy.report.store import Report
from pytest_gpuenergy.report.tables import Best, best_of_each, energy, subject, time
from pytest_gpuenergy.report.text import figures

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
    "drift": "an anchor kernel, measured before and after, had changed by more than 3 %",
    "foreign_process": "another process had a CUDA context on the GPU",
    "legacy": "read from an older tool's output: how it was measured is unknown",
}


def page_data(report: Report, baseline: Report | None = None) -> Values:
    """Everything the page shows of ``report`` and its differences from ``baseline``.

    Raises:
        ReportInputError: one report is from an emulated GPU and the other from a real one.
    """
    rows = report.measurements
    best = best_of_each(rows)
    # By id, because measurements may be equal.
    front = {id(m) for one in best for m in one.front}
    caps = _caps(rows)
    return {
        "gpu": report.run.gpu_name,
        "emulated": report.run.emulated,
        "run": _identity(report.run),
        "caps": caps,
        "rows": [_row(m, pareto=id(m) in front) for m in rows],
        "best": [_best(one) for one in best],
        "flags": _flags(rows),
        "anchors": [_check(one) for one in report.anchors],
        "charts": charts(emulated=report.run.emulated, caps=len(caps)),
        "baseline": None if baseline is None else _identity(baseline.run),
        "differences": []
        if baseline is None
        else [_difference(one) for one in differences(report, baseline)],
    }


def _caps(rows: Sequence[Measurement]) -> list[str]:
    """Labels of the caps, lowest first."""
    watts = {m.cap: m.enforced_power_limit_w or m.power_limit_w or 0.0 for m in rows}
    return sorted(watts, key=lambda cap: (watts[cap], cap))


def _row(m: Measurement, *, pareto: bool) -> Values:
    conditions = m.end
    return {
        "workload": subject(m),
        "kernel": m.kernel.label,
        "band": str(m.kernel.details.get("band", m.kernel.origin)),
        "cap": m.cap,
        "limit_w": _finite(m.enforced_power_limit_w or m.power_limit_w),
        **_figure("time_us", m, Metric.TIME, 1e3),
        **_figure("energy_mj", m, Metric.ENERGY),
        **_figure("edp_mj_ms", m, Metric.EDP),
        "power_w": _finite(m.power_w),
        "gflops": _finite(m.gflops),
        "gflops_per_w": _finite(m.gflops_per_w),
        "temperature_c": _temperature_c(m),
        "sm_clock_mhz": conditions.sm_clock_mhz if conditions else None,
        "effective_sm_clock_mhz": _finite(m.effective_sm_clock_mhz),
        "clock_states": [_state(one) for one in m.clock_states] if len(m.clock_states) > 1 else [],
        "binding": m.cap_binding,
        "pareto": pareto,
        "flags": list(m.validity),
        "state": "failed" if not m.measured else "flagged" if m.validity else "clean",
        "outcome": m.outcome,
        "error": VERIFIED if m.verified_only else m.error,
        "digest": m.kernel.digest[:12],
        "item": m.node_id,
    }


def _state(state: ClockState) -> str:
    return f"{state.share:.0%} at {state.name}"


def _temperature_c(m: Measurement) -> float | None:
    """The mean over the trials; in older records, the reading after them."""
    if m.temperature_c is None:
        return None if m.end is None else m.end.temperature_c
    return _finite(m.temperature_c)


def _figure(name: str, m: Measurement, metric: Metric, scale: float = 1.0) -> Values:
    value, interval = m.figure(metric), m.interval(metric)
    low, high = (interval.low, interval.high) if interval else (value, value)
    ends = {name: value, f"{name}_low": low, f"{name}_high": high}
    return {key: _finite(end, scale) for key, end in ends.items()}


def _finite(value: float | None, scale: float = 1.0) -> float | None:
    if value is None:
        return None
    scaled = value * scale
    return scaled if math.isfinite(scaled) else None


def _best(best: Best) -> Values:
    def cell(m: Measurement, figure: str) -> Values:
        return {
            "figure": figure,
            "kernel": m.kernel.label,
            "cap": m.cap,
            "flagged": bool(m.validity),
        }

    return {
        "workload": best.workload,
        "measured": len(best.rows),
        "time": cell(best.time, time(best.time.time_ms or 0.0)),
        "energy": cell(best.energy, energy(best.energy.energy_mj or 0.0)),
        "edp": cell(best.edp, f"{figures(best.edp.edp_mj_ms or 0.0)} mJ·ms"),
        "front": [{"kernel": m.kernel.label, "cap": m.cap} for m in best.front],
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
    percents = (None if end is None else _finite(end - 1, 100.0) for end in ends)
    return dict(zip((str(metric), f"{metric}_low", f"{metric}_high"), percents, strict=True))


def _identity(run: RunInfo) -> list[tuple[str, str]]:
    limits = [f"{name} {watts:g} W" for name, watts in run.power_limits_w.items()]
    return [
        ("run", run.run_id),
        ("started", run.started),
        ("host", run.host),
        ("GPU", f"{run.gpu_name}{' (emulated)' if run.emulated else ''}"),
        ("UUID", run.gpu_uuid),
        ("architecture", run.architecture),
        ("power limits", ", ".join(limits)),
        ("git revision", run.git_revision or "unknown"),
        *((f"option --{name}", value) for name, value in run.options.items()),
        *run.software.items(),
    ]


def _difference(one: Difference) -> Values:
    (before, now), intervals = one.values, one.intervals
    change = one.change
    return {
        "workload": subject(one.now),
        "kernel": one.now.kernel.label,
        "cap": one.now.cap,
        "metric": f"{one.metric.label} ({one.metric.unit})",
        "before": before,
        "now": now,
        "before_interval": _ends(intervals[0]),
        "now_interval": _ends(intervals[1]),
        "change_percent": None if change is None else _finite(change, 100.0),
        "same_kernel": one.same_kernel,
        "flags": sorted({*one.before.validity, *one.now.validity}),
    }


def _ends(interval: Interval | None) -> tuple[float, float] | None:
    return None if interval is None else (interval.low, interval.high)
