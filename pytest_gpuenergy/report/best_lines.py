"""The best of each workload for the terminal, and what clocks save over caps, in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import log1p

from pytest_gpuenergy.record import METRICS, Measurement
from pytest_gpuenergy.report.clock_saving import ClockSaving
from pytest_gpuenergy.report.tables import Best, best_of_each, title_label
from pytest_gpuenergy.report.text import signed_percent
from pytest_gpuenergy.support import fitted, wrapped

CLOCK_OVER_CAP = "best locked clock over best cap without one"


def best_lines(
    measurements: Iterable[Measurement],
    *,
    emulated: bool,
    width: int | None = None,
    calibrated: bool = False,
) -> Iterator[str]:
    """A table of each workload's best time, energy and EDP, with kernels and caps within noise.

    Where clocks were locked, another one has what they save.
    """
    best = best_of_each(measurements)
    if not best:
        return
    label = title_label(emulated=emulated, calibrated=calibrated)
    savings = [one for one in best if one.savings]
    setpoint = "best setpoint" if savings or any(map(_locked, best)) else "best cap"
    yield from wrapped(f"best of each workload{label}", width)
    yield from _table(
        [
            ("workload", "least time", "least energy", "least EDP", setpoint, "Pareto"),
            *map(_best_row, best),
        ],
        width,
    )
    if savings:
        yield from wrapped(f"{CLOCK_OVER_CAP}{label}", width)
        titles = ("workload", *(metric.label for metric in METRICS))
        yield from _table([titles, *map(_saving_row, savings)], width)
    if any(m.validity for one in best for m in (one.time, one.energy, one.edp)):
        yield "  ! flagged (see validity)"


def saving_words(saving: ClockSaving | None) -> str:
    """``-12.3 % (-13.1 % to -11.4 %): k01 at 450W-1500MHz, not k02 at 575W``; ``!``: flagged."""
    if saving is None:
        return ""
    words = signed_percent(log1p(saving.change))
    if saving.low is not None and saving.high is not None:
        ends = (signed_percent(log1p(end)) for end in (saving.low, saving.high))
        words += f" ({' to '.join(ends)})"
    words += f": {saving.clock_kernel} at {saving.clock_cap}, "
    words += f"not {saving.cap_kernel} at {saving.cap_cap}"
    return f"{words}{' !' if saving.flagged else ''}"


def _locked(best: Best) -> bool:
    return any(m.sm_clock_mhz is not None for m in best.rows)


def _table(rows: Sequence[Sequence[str]], width: int | None) -> Iterator[str]:
    yield from (f"  {line}" for line in fitted(rows, None if width is None else width - 2))


def _best_row(best: Best) -> tuple[str, ...]:
    return (
        best.workload,
        *(best.cell(metric) for metric in METRICS),
        best.caps,
        f"{best.size_of_front} of {len(best.rows)}",
    )


def _saving_row(best: Best) -> tuple[str, ...]:
    return (best.workload, *(saving_words(best.savings.get(metric)) for metric in METRICS))
