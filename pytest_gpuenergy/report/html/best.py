"""Which kernel and which cap are best, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_gpuenergy.record.measurement import Measurement
from pytest_gpuenergy.record.metrics import METRICS, Metric
from pytest_gpuenergy.report.tables import best_of_each, energy, time
from pytest_gpuenergy.report.text import figures
from pytest_gpuenergy.report.ties import Tie, cap_words, kernel_words, near_front, tie

Values = dict[str, Any]


def best_values(measurements: Sequence[Measurement]) -> tuple[list[Values], dict[int, str]]:
    """The best of each workload, and by `id` the place of measurements at the Pareto front.

    Places are by id, because measurements may be equal.
    """
    found: list[Values] = []
    places: dict[int, str] = {}
    for one in best_of_each(measurements):
        places |= {id(m): "near" for m in near_front(one.rows)}
        places |= {id(m): "front" for m in one.front}
        ties = {metric: tie(one.rows, metric) for metric in METRICS}
        found.append(
            {
                "workload": one.workload,
                "measured": len(one.rows),
                **{str(m): _leader(best, one.rows) for m, best in ties.items() if best},
                "front": [{"kernel": m.kernel.label, "cap": m.cap} for m in one.front],
            }
        )
    return found, places


def _leader(found: Tie, rows: Sequence[Measurement]) -> Values:
    best, metric = found.best, found.metric
    estimate = best.estimate(metric)
    return {
        "figure": _figure(best, metric),
        "percent": None if estimate is None else 100 * estimate.relative_half_width,
        "value": best.figure(metric),
        "kernels": kernel_words(found),
        "caps": cap_words(found, rows),
        "kernel": best.kernel.label,
        "cap": best.cap,
        "flagged": bool(best.validity),
        "tied": [{"kernel": m.kernel.label, "cap": m.cap} for m in found.rows],
        "sure": _sure(found, rows),
    }


def _sure(found: Tie, rows: Sequence[Measurement]) -> str:
    """How certain it is that the best is the best, in words."""
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


def _figure(m: Measurement, metric: Metric) -> str:
    value = m.figure(metric) or 0.0
    if metric is Metric.EDP:
        return f"{figures(value)} mJ·ms"
    return time(value) if metric is Metric.TIME else energy(value)
