"""What the HTML page shows of a gate: verdicts, the worst first, and figures over runs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from pytest_gpuenergy.gate.comparison import Comparison, Unmatched, compare
from pytest_gpuenergy.gate.history import Series, history
from pytest_gpuenergy.gate.settings import GateSettings
from pytest_gpuenergy.gate.shift_views import shift_lines
from pytest_gpuenergy.gate.verdict import Judgement, Verdict, fails
from pytest_gpuenergy.gate.views import as_json, label, summary
from pytest_gpuenergy.record import METRICS
from pytest_gpuenergy.report import Report
from pytest_gpuenergy.support import InputError

Values = dict[str, Any]
_ORDER = (Verdict.WORSE, Verdict.AMBIGUOUS, Verdict.BETTER, Verdict.SAME)


def verdicts_of(base: Report, new: Report, settings: GateSettings) -> Values:
    """`verdict_values` of two reports, or the reason why there are none."""
    try:
        return verdict_values(compare(base, new, settings))
    except InputError as error:
        return {"why": str(error), "judgements": []}


def verdict_values(comparison: Comparison) -> Values:
    """A comparison as plain values; judgements are sorted, the worst first."""
    settings = comparison.settings
    return {
        "why": None,
        "passed": comparison.passed,
        "enforced": settings.enforced,
        "summary": summary(comparison),
        "doubts": list(comparison.doubts),
        "shifts": list(shift_lines(comparison.shifts, emulated=comparison.new.emulated)),
        "judgements": [
            {**as_json(one), "label": label(one.identity), "fails": fails(one, settings)}
            for one in sorted(comparison.judgements, key=_badness)
        ],
        "unmatched": [
            *_named("no longer measured", comparison.failed),
            *_named("missing from the baseline", comparison.missing_in_base),
            *_named("missing from the new run", comparison.missing_in_new),
        ],
    }


def trend_values(reports: Iterable[Report]) -> list[Values]:
    """Figures of each kernel over runs on its board, oldest first, and where their level changed.

    A kernel that was measured once has no trend.
    """
    found = list(reports)
    series: dict[tuple[object, ...], dict[str, Series]] = defaultdict(dict)
    for metric in METRICS:
        for one in history(found, metric):
            if len(one.points) > 1:
                key = (one.identity, one.item, one.run.gpu_uuid, one.run.emulated)
                series[key][metric] = one
    return [_trend(one) for one in series.values()]


def _trend(by_metric: dict[str, Series]) -> Values:
    first = next(iter(by_metric.values()))
    return {
        **first.identity._asdict(),
        "gpu_uuid": first.run.gpu_uuid,
        "item": first.item,
        "runs": [[point.run.run_id, point.run.started] for point in first.points],
        "flags": [list(point.flags) for point in first.points],
        "metrics": {
            metric: {
                "values": [point.value for point in one.points],
                "low": [point.ci95.low if point.ci95 else None for point in one.points],
                "high": [point.ci95.high if point.ci95 else None for point in one.points],
                "changes": [
                    {"run": change.first.run.run_id, "relative": change.relative, "p": change.p}
                    for change in one.changes
                ],
            }
            for metric, one in by_metric.items()
        },
    }


def _badness(one: Judgement) -> tuple[int, float]:
    change = -math.inf if one.change is None else one.change.value
    return _ORDER.index(one.verdict), -change


def _named(what: str, unmatched: Sequence[Unmatched]) -> list[Values]:
    return [
        {"what": what, "label": label(one.measurement.identity), "why": one.why}
        for one in unmatched
    ]
