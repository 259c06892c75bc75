"""Which kernel and which setpoint are best, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_gpuenergy.record import Measurement
from pytest_gpuenergy.report.best_lines import saving_words
from pytest_gpuenergy.report.tables import Best, figure
from pytest_gpuenergy.report.ties import Tie, cap_words, kernel_words

Values = dict[str, Any]


def best_values(best: Best) -> Values:
    """The best of a workload by each metric, with all that may be as good within noise."""
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
