"""Formats what unchanged kernels have in common, for the terminal, Markdown and JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from pytest_gpuenergy.gate.relative import JudgedShift
from pytest_gpuenergy.gate.verdict import Verdict
from pytest_gpuenergy.report import USUAL_SCATTER, CommonShift, Place, signed_percent
from pytest_gpuenergy.support import emulated_mark


def shift_lines(shifts: Iterable[JudgedShift], *, emulated: bool) -> Iterator[str]:
    """What unchanged kernels have in common, a line per place, and what is unusual about it."""
    places: dict[Place, list[JudgedShift]] = {}
    for one in shifts:
        places.setdefault(one.shift.place, []).append(one)
    for place, judged in places.items():
        first = judged[0].shift
        board = "" if first.same_board else ", another board"
        mark = emulated_mark(emulated)
        parts = (_shift_words(one.shift) for one in judged)
        yield (
            f"{first.kernels} unchanged kernels at {place.cap}{board}{mark} changed in common by "
            f"{'; '.join(parts)}: changes are relative to that"
        )
        yield from filter(None, (shift_problem(one, emulated=emulated) for one in judged))


def shift_problem(judged: JudgedShift, *, emulated: bool) -> str:
    """What is unusual about a common shift, or an empty string."""
    shift = judged.shift
    parts: list[str] = []
    between = "between sessions on one board" if shift.same_board else "between boards"
    if judged.unusual:
        parts.append(f"more than is usual {between} (±{100 * math.expm1(judged.usual):.1f} %)")
    if shift.scattered:
        most = USUAL_SCATTER[shift.metric]
        parts.append(f"with a scatter of more than {100 * most:.1f} %")
    if judged.verdict is Verdict.WORSE:
        parts.append(f"beyond the limit of {100 * judged.limit:.4g} %: {judged.verdict}")
    if not parts:
        return ""
    where = f"{shift.place.cap}{emulated_mark(emulated)}"
    return (
        f"{shift.metric.label} of what has not changed at {where}: "
        f"{signed_percent(shift.change.value)}, {', '.join(parts)} "
        "(did the driver, the compiler or the harness change?)"
    )


def shift_json(judged: JudgedShift) -> dict[str, Any]:
    """A shift as plain data; changes and scatters are fractions."""
    shift = judged.shift
    return {
        "metric": shift.metric,
        "cap": shift.place.cap,
        "base_gpu_uuid": shift.place.before,
        "gpu_uuid": shift.place.now,
        "kernels": shift.kernels,
        "apart": shift.apart,
        "change": math.expm1(shift.change.value),
        "interval": [math.expm1(shift.change.low), math.expm1(shift.change.high)],
        "scatter": shift.scatter,
        "scatter_beyond_intervals": shift.lasting,
        "limit": judged.limit,
        "verdict": str(judged.verdict),
        "usual": math.expm1(judged.usual),
        "unusual": judged.unusual,
    }


def _shift_words(shift: CommonShift) -> str:
    change = shift.change
    ends = " to ".join(map(signed_percent, (change.low, change.high)))
    apart = f" without {shift.apart} that lie apart" if shift.apart else ""
    return (
        f"{shift.metric.label} {signed_percent(change.value)} ({ends}), "
        f"scatter {100 * shift.scatter:.2g} %{apart}"
    )
